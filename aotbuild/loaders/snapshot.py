"""A picture of a module's structure that costs microseconds to compare.

What a difference means is `state`'s to say.
"""

from __future__ import annotations

from itertools import repeat
from operator import getitem
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from aotbuild.loaders.attending import active_backend
from aotbuild.loaders.state import FREEU, depends_on_training, processor_of
from aotbuild.loaders.tree import walk


class Snapshot:
    """The module tree at one moment: children, hooks, processors, switches, training mode.

    Everything is compared by C loops over flat lists, because a UNet has thousands of submodules
    and is called fifty times an image. Children are compared by identity, which sees any layer
    that was wrapped or replaced; the number of attributes of every submodule sees whatever is
    newly set on one (a `forward`, FreeU's factors, a cache hook). What it doesn't see is a plain
    attribute of a submodule changed in place, other than those named below: `refresh` looks again.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = [m for _, m in walk(module)]
        self._child_tables = [m._modules for m in modules if m._modules]
        self._children = [dict(table) for table in self._child_tables]
        self._tables = [vars(m) for m in modules]
        self._lengths = list(map(len, self._tables))
        self._hooks = [m._forward_hooks for m in modules] + [m._forward_pre_hooks for m in modules]
        self._hooked = any(self._hooks)
        self._handles = RemovableHandle.next_id
        self._attentions = [vars(m) for m in modules if "processor" in vars(m)]
        self._processors = list(map(getitem, self._attentions, repeat("processor")))
        owners = [p for m in modules if hasattr(p := processor_of(m), "__dict__")]
        self._processor_tables = [vars(p) for p in owners]
        self._processor_lengths = list(map(len, self._processor_tables))
        self._watched, self._values = _watch(module, modules, self._processor_tables)
        # Patches set `__class__`, and "seamless" scripts the padding of convolutions.
        self._modules = modules
        self._types = list(map(type, modules))
        self._convolutions = [vars(m) for m in modules if "padding_mode" in vars(m)]
        self._paddings = list(map(getitem, self._convolutions, repeat("padding_mode")))
        self._modal = [vars(m) for m in modules if m is module or depends_on_training(m)]
        self._modes = list(map(getitem, self._modal, repeat("training")))
        self._attention = active_backend()

    def _hooks_match(self) -> bool:
        """Looks only after somebody registered a hook somewhere, or where there were some.

        Source: torch/utils/hooks.py; every registration takes the next number of its handles.
        """
        handles = RemovableHandle.next_id
        if handles == self._handles and not self._hooked:
            return True
        self._handles = handles
        return any(self._hooks) == self._hooked

    def matches(self) -> bool:
        """Whether nothing that was recorded has changed."""
        try:
            return (
                self._child_tables == self._children
                and list(map(len, self._tables)) == self._lengths
                and self._hooks_match()
                and list(map(getitem, self._attentions, repeat("processor"))) == self._processors
                and list(map(len, self._processor_tables)) == self._processor_lengths
                and list(map(type, self._modules)) == self._types
                and list(map(getitem, self._convolutions, repeat("padding_mode"))) == self._paddings
                and list(map(getitem, self._modal, repeat("training"))) == self._modes
                and self._watched == self._values
                and active_backend() == self._attention
            )
        except (KeyError, RuntimeError, TypeError, ValueError):
            # An attribute that is gone, or one whose comparison isn't a plain bool: a change.
            return False


def _watch(
    root: nn.Module, modules: list[nn.Module], processors: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tables whose values count, and copies of them (lists copied, as they change in place)."""
    watched = [vars(root), *(vars(m) for m in modules if any(k in vars(m) for k in FREEU))]
    watched += [table for table in processors if table]
    copies = [{k: list(v) if type(v) is list else v for k, v in table.items()} for table in watched]
    return watched, copies
