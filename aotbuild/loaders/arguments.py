"""The rules that bring an argument of several forms to the one that an artifact was built for.

Which arguments have a rule the manifest says; `dispatch` applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from aotbuild.loaders.coverage import described

Bring: TypeAlias = Callable[[Any, Tensor], Tensor | None]
TIMESTEP, SCALAR = "timestep/1", "scalar/1"

_TENSORS = (Tensor, nn.Parameter)


def timestep(value: Any, first: Tensor) -> Tensor | None:
    """`value` in the form of the rule "timestep/1": float32, one element per sample; else None.

    A number, or a tensor of rank 0 or 1 with one element or one per sample, of any real dtype.

    Args:
        first: the first tensor of the call that has no rule, whose first extent is the batch.

    Source: diffusers' UNet2DConditionModel.get_time_embed makes a tensor of a number, expands it to
    the batch and reads it as float32, so the values are the same.
    """
    if not first.dim():
        return None
    batch = first.shape[0]
    kind = type(value)
    if kind is Tensor and value.dtype is torch.float32 and value.shape == (batch,):
        return value if value.device == first.device else None
    if kind in (int, float):
        return _full((batch,), value, first.device)
    if kind not in _TENSORS or value.dim() > 1 or value.dtype is torch.bool or value.is_complex():
        return None
    if value.dim() == 1 and value.shape[0] not in (1, batch):
        return None
    if value.device != first.device:
        if value.dim() == 1:
            return None
        value = value.to(first.device)
    value = value.to(torch.float32)
    if value.dim() == 1 and value.shape[0] == batch:
        return value  # type: ignore[no-any-return]
    return value.reshape(1).expand(batch).contiguous()  # type: ignore[no-any-return]


def scalar(value: Any, first: Tensor) -> Tensor | None:
    """`value` in the form of the rule "scalar/1": a float32 tensor of rank 0; else None.

    A number, or a tensor of rank 0 of any real dtype, on the device of `first` or on the CPU. For
    arguments that only scale floating tensors. Neither a number nor a tensor of rank 0 changes
    their dtype, and torch reads both in float32 for all of float32, bfloat16 and float16, so the
    values are the same.
    """
    device = first.device
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _full((), value, device)
    if type(value) not in _TENSORS or value.dim() or value.dtype is torch.bool:
        return None
    if value.is_complex() or value.device not in (device, torch.device("cpu")):
        return None
    return value.to(device, torch.float32)  # type: ignore[no-any-return]


BRING: Mapping[str, Bring] = {TIMESTEP: timestep, SCALAR: scalar}
"""By name of the rule: what brings a value to its form, with the call's first unruled tensor."""


def refusal(rule: str, path: str, value: Any, first: Tensor | None) -> str:
    """Why `rule` makes nothing of the `value` at `path`."""
    if first is None:
        return f"{path} has the rule {rule}, but the call has no tensor beside it"
    if rule == TIMESTEP:
        sample = f"a sample of {described(first)}"
        return f"{path} isn't a number, nor one number for each of {sample}"
    return f"{path} is {_shown(value)}, not one real number"


def first_tensor(call: Mapping[str, Any], ruled: Container[str]) -> Tensor | None:
    """The first tensor argument that no rule is for."""
    return next((v for k, v in call.items() if type(v) in _TENSORS and k not in ruled), None)


def _full(shape: tuple[int, ...], number: float, device: torch.device) -> Tensor | None:
    """`number` in float32; None where it is beyond that."""
    try:
        return torch.full(shape, number, dtype=torch.float32, device=device)
    except (OverflowError, RuntimeError):
        return None


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor, {described(value)}"
    plain = value is None or isinstance(value, (bool, int, float))
    return repr(value) if plain else f"a {type(value).__name__}"
