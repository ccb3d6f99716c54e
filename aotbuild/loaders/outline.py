"""What shows of a module that was never built: layers, by its artifacts' constants; its methods.

Pipelines look at the width of one layer or another: SDXL's at `unet.add_embedding.linear_1`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from aotbuild.cache.files import Parameter
from aotbuild.cache.manifest import Constant
from aotbuild.errors import ReleasedError
from aotbuild.loaders.rules import INT8_ROWS, TENSOR
from aotbuild.loaders.signature import READ

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

    _path: str
    _shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, path: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        vars(self).update(_path=path, _shapes=shapes)

    def __getattr__(self, name: str) -> Outline | int:
        return outlined(self._path, name, self._shapes)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{self._path} is an outline of a layer that isn't here: setting {name!r} would change "
            "nothing."
        )

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


def absent_method(method: str, parameters: tuple[Parameter, ...]) -> Callable[..., Any]:
    """What a class without a module has as `method`: its parameters, and nothing behind them."""
    kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty

    def absent(self: nn.Module, *_args: Any, **_kwargs: Any) -> Any:
        raise ReleasedError(
            f"{type(self).__name__}.{method} has only compiled code, which was let go of by "
            "restore(). Call aotbuild.load_component again."
        )

    absent.__name__ = method
    absent.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", kind),
            *(
                inspect.Parameter(p.name, kind, default=empty if p.required else p.default)
                for p in parameters
            ),
        ]
    )
    setattr(absent, READ, frozenset(p.name for p in parameters if p.read))
    return absent
