"""Keep moving dimensions symbolic where a model's code says `int(length)`. Exports nothing.

Tracing runs the model's Python with numbers that stand for every length of a range. `int` of such a
number must be a plain one, so torch gives the example's own, and the range is lost.
"""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import nn

from aotbuild.loaders.state import processor_of


class _Kind(type):
    """Of a class that stands for `int`: what is one, and which classes are below it."""

    def __instancecheck__(cls, instance: object) -> bool:
        return builtins.isinstance(instance, builtins.int)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return builtins.issubclass(subclass, builtins.int)


class _Int(builtins.int, metaclass=_Kind):
    """`int` that leaves symbolic numbers as they are."""

    def __new__(cls, *args: object, **kwargs: object) -> builtins.int:  # type: ignore[misc]
        if len(args) == 1 and builtins.isinstance(args[0], torch.SymInt):
            return args[0]  # type: ignore[return-value]
        return builtins.int(*args, **kwargs)  # type: ignore[call-overload, no-any-return]


@contextlib.contextmanager
def symbolic_int(module: nn.Module) -> Iterator[None]:
    """Within, `int(length)` in the source files of `module`'s classes keeps a symbolic length."""
    processors = (p for m in module.modules() if (p := processor_of(m)) is not None)
    names = {type(part).__module__ for part in (*module.modules(), *processors)}
    files = [vars(sys.modules[n]) for n in sorted(names) if _is_models(n)]
    changed = [table for table in files if "int" not in table]
    for table in changed:
        table["int"] = _Int
    try:
        yield
    finally:
        for table in changed:
            del table["int"]


def _is_models(name: str) -> bool:
    return name in sys.modules and name.partition(".")[0] not in ("torch", "builtins", "aotbuild")
