"""Which dimensions of a call may move, read off two rehearsals. Chooses and makes none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from aotbuild.build.calls import RecordedCall
from aotbuild.cache.signature import Extent, flatten, parse_extent
from aotbuild.errors import BuildError
from aotbuild.recipe.call import RESERVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """What differs between two rehearsals of one call.

    Attributes:
        bounds: symbol -> (smallest, largest) that is asked for.
        values: each symbol's value at either rehearsal; no two change by the same ratio.
        labels: what people call either.
        sizes: whether it is the resolution that moves, which a unit must follow.
    """

    bounds: Mapping[str, tuple[int, int]]
    values: tuple[Mapping[str, int], Mapping[str, int]]
    labels: tuple[str, str]
    sizes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The moving dimensions of one unit over a range of resolutions or lengths.

    Attributes:
        symbols: (name, smallest, largest).
        extents: path of an input with a moving dimension -> its extents, "8*h".
        answer_extents: the same for the answer's tensors.
        dynamic_shapes: the argument of that name of `torch.export.export`.
    """

    symbols: tuple[tuple[str, int, int], ...]
    extents: dict[str, tuple[Extent, ...]]
    answer_extents: dict[str, tuple[Extent, ...]]
    dynamic_shapes: dict[str, Any]


def find_range(first: RecordedCall, second: RecordedCall, moving: Moving) -> Range | None:
    """The range of a unit from its calls at two rehearsals.

    Returns:
        None where the unit's call holds nothing that moves, and needn't.

    Raises:
        BuildError: the unit can't be dynamic, naming the argument or dimension that forbids it.
    """
    extents = _compare(first.unit, first.call, second.call, moving)
    answers = _compare(first.unit, first.answer, second.answer, moving)
    names = {s for shape in (*extents.values(), *answers.values()) for s in _names(shape)}
    symbols = tuple((n, *bounds) for n, bounds in moving.bounds.items() if n in names)
    if not {s for shape in extents.values() for s in _names(shape)}:
        if not moving.sizes and not answers:
            return None
        raise BuildError(f"{first.unit}: nothing in its call changes with the resolution.")
    dims = {n: torch.export.Dim(n, min=low, max=high) for n, low, high in symbols}
    shapes = {n: _dynamic(v, n, extents, dims) for n, v in first.call.items()}
    return Range(symbols=symbols, extents=extents, answer_extents=answers, dynamic_shapes=shapes)


def _compare(unit: str, first: Any, second: Any, moving: Moving) -> dict[str, tuple[Extent, ...]]:
    """Path -> extents of every tensor with a dimension that differs between the two."""
    left, right = dict(flatten(first)), dict(flatten(second))
    found: dict[str, tuple[Extent, ...]] = {}
    for path in sorted({*left, *right}):
        a, b = left.get(path), right.get(path)
        where = path or "the argument list"
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            if type(a) is not type(b) or a != b:
                raise BuildError(
                    f"{unit} can't be dynamic because of {where}: it is {_brief(a)} at "
                    f"{moving.labels[0]} and {_brief(b)} at {moving.labels[1]}, and compiled code "
                    "holds such a value fixed. Build each size for itself."
                )
        elif a.dtype != b.dtype or a.dim() != b.dim():
            raise BuildError(f"{unit} can't be dynamic: {where} changes its dtype or rank.")
        elif a.shape != b.shape:
            found[path] = tuple(
                _extent(unit, f"{where} dimension {i}", pair, moving)
                for i, pair in enumerate(zip(a.shape, b.shape, strict=True))
            )
    return found


def _extent(unit: str, where: str, pair: tuple[int, int], moving: Moving) -> Extent:
    if pair[0] == pair[1]:
        return int(pair[0])
    for symbol in moving.bounds:
        factors = [Fraction(n, v[symbol]) for n, v in zip(pair, moving.values, strict=True)]
        if factors[0] == factors[1] and factors[0].denominator == 1:
            return f"{factors[0]}*{symbol}"
    lengths = [symbol for symbol in moving.bounds if symbol not in RESERVED]
    raise BuildError(
        f"{unit} can't be dynamic because of {where}: {pair[0]} at {moving.labels[0]} and "
        f"{pair[1]} at {moving.labels[1]} is a whole multiple of neither height, width nor area in "
        f"steps of the recipe's multiple_px{''.join(f', nor of {n}' for n in lengths)}."
    )


def _names(shape: tuple[Extent, ...]) -> Iterator[str]:
    return (s for e in shape if (s := parse_extent(e)[1]) is not None)


def _dynamic(
    value: Any, path: str, extents: dict[str, tuple[Extent, ...]], dims: dict[str, Any]
) -> Any:
    """The entry of `dynamic_shapes` for one argument: the same tree, with dims by index."""
    if type(value) is dict:
        return {k: _dynamic(v, f"{path}.{k}", extents, dims) for k, v in value.items()}
    if type(value) in (list, tuple):
        parts = (_dynamic(v, f"{path}.{i}", extents, dims) for i, v in enumerate(value))
        return type(value)(parts)
    if path not in extents:
        return None
    parsed = (parse_extent(e) for e in extents[path])
    return {
        i: factor * dims[symbol] if factor > 1 else dims[symbol]
        for i, (factor, symbol) in enumerate(parsed)
        if symbol is not None
    }


def _brief(value: object) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)[:80]
