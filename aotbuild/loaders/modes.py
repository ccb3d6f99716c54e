"""What torch is doing besides computing numbers, where it does more.

Private names, tried on torch 2.11.0, 2.13.0 and 2.14.1:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/module.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/overrides.py
"""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.modules.module as modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext


def special_mode() -> str | None:
    """The mode of this thread in which compiled code would take no part; None in ordinary times."""
    if modules._global_forward_hooks or modules._global_forward_pre_hooks:
        return "a forward hook is set on all modules"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a transform of torch.func is active"
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return "the call is being traced"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is on"
    if torch._C._len_torch_function_stack():
        # `with torch.device(...)` is one too, which says only where new tensors are made.
        stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        others = (m for m in stack if type(m) is not DeviceContext)
        if (mode := next(others, None)) is not None:
            return f"a {type(mode).__name__} changes what torch's functions do"
    return None
