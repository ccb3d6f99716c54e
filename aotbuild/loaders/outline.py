"""The layers of a module that was never built, as far as the constants of its artifacts show them.

Pipelines look at the width of one layer or another: SDXL's at `unet.add_embedding.linear_1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aotbuild.cache.manifest import Constant
from aotbuild.loaders.rules import INT8_ROWS, TENSOR

_KINDS = {2: ("in_features", "out_features"), 4: ("in_channels", "out_channels")}
"""By the rank of the weight: how a linear layer and a convolution call their two widths."""


def weight_shapes(constants: Iterable[Constant]) -> dict[str, tuple[int, ...]]:
    """Path in the module -> shape, of each weight that alone makes a constant of its own shape."""
    return {
        c.sources[0]: c.shape
        for c in constants
        if len(c.sources) == 1 and (c.rule == TENSOR or (c.rule, c.dtype) == (INT8_ROWS, "int8"))
    }


class Outline:
    """A layer, or what holds layers: its children by attribute, and a layer's two widths."""

    def __init__(self, path: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._path = path
        self._shapes = shapes

    def __getattr__(self, name: str) -> Outline | int:
        return outlined(self._path, name, self._shapes)

    def __repr__(self) -> str:
        return f"<outline of {self._path}>"


def outlined(path: str, name: str, shapes: Mapping[str, tuple[int, ...]]) -> Outline | int:
    """What the module at `path` has as its attribute `name`.

    Raises:
        AttributeError: nothing that the constants show.
    """
    shape = shapes.get(f"{path}.weight", ())
    widths = _KINDS.get(len(shape), ())
    if name in widths:
        return shape[1 - widths.index(name)]
    inner = f"{path}.{name}" if path else name
    if any(p.startswith(f"{inner}.") for p in shapes):
        return Outline(inner, shapes)
    raise AttributeError(f"{path or 'the component'} has no {name!r} that its artifacts show")
