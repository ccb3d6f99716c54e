"""Setting a component's method on the instance, and putting back exactly what was there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from aotbuild.errors import LoadError
from aotbuild.loaders.dispatch import Dispatcher
from aotbuild.loaders.tree import walk

_NOTHING = object()


class Swap:
    """One method of one module, replaced until `undo`."""

    def __init__(self, module: nn.Module, method: str, dispatcher: Dispatcher) -> None:
        self._module = module
        self._method = method
        self._dispatcher = dispatcher
        self._before: Any = vars(module).get(method, _NOTHING)
        # Not setattr: a module's own would look for parameters, and other classes' for config.
        vars(module)[method] = dispatcher

    def undo(self) -> None:
        """The instance as it was; a method that somebody set since then stays theirs."""
        table = vars(self._module)
        if table.get(self._method) is not self._dispatcher:
            return
        if self._before is _NOTHING:
            del table[self._method]
        else:
            table[self._method] = self._before


def check_free(module: nn.Module, name: str, methods: Iterable[str]) -> None:
    """Refuse a component of which one of `methods` is swapped already, or a part.

    Raises:
        LoadError: it is.
    """
    swapped = [m for m in methods if isinstance(vars(module).get(m), Dispatcher)]
    parts = (type(p).__name__ for _, p in walk(module) if p is not module and _is_swapped(p))
    what = f"{name}.{swapped[0]}" if swapped else next((f"{name}'s {part}" for part in parts), None)
    if what is not None:
        raise LoadError(
            f"{what} is swapped already. Call restore() on what the first load returned, then load "
            "again."
        )


def _is_swapped(module: nn.Module) -> bool:
    return isinstance(vars(module).get("forward"), Dispatcher)
