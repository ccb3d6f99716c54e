"""Which dimensions of a call may move, read off two rehearsals. Rehearses nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import torch

from aotbuild.build.calls import RecordedCall
from aotbuild.cache.signature import Extent, flatten, parse_extent
from aotbuild.errors import BuildError, RecipeError

Size = tuple[int, int]
"""(width, height) in pixels."""

SYMBOLS = ("h", "w", "hw")
"""Height, width and area, each in steps of the recipe's `multiple_px`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The moving dimensions of one unit over a range of resolutions.

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


def inner_sizes(low: Size, high: Size, multiple_px: int) -> tuple[Size, Size]:
    """Two sizes within low..high that tell height, width and area apart.

    Between the two, height, width and area change by three different ratios (those that change at
    all), so each dimension of a recorded call follows exactly one of them.

    Raises:
        RecipeError: low isn't below high, or the range has too few sizes to tell.
    """
    for edge in (*low, *high):
        if edge % multiple_px:
            raise RecipeError(f"The range's edges must be multiples of {multiple_px} pixels.")
    (w0, h0), (w1, h1) = low, high
    if w0 > w1 or h0 > h1 or low == high:
        raise RecipeError(f"Range {w0}x{h0}:{w1}x{h1} is empty; write smallest:largest.")
    widths, heights = _choices(w0, w1, multiple_px), _choices(h0, h1, multiple_px)
    candidates = (((a, c), (b, d)) for a, b, c, d in product(widths, widths, heights, heights))
    found = max(candidates, key=lambda pair: _separation(pair, low, high))
    if _separation(found, low, high) == 0:
        raise RecipeError(
            f"Range {w0}x{h0}:{w1}x{h1} has too few sizes to tell width from height; widen it by "
            f"{multiple_px} pixels on one side, or build each resolution for itself."
        )
    return found


def find_range(
    first: RecordedCall,
    second: RecordedCall,
    *,
    sizes: tuple[Size, Size],
    low: Size,
    high: Size,
    multiple_px: int,
) -> Range:
    """The range of a unit from its calls at the two `sizes` that `inner_sizes` chose.

    Raises:
        BuildError: the unit can't be dynamic, naming the argument or dimension that forbids it.
    """
    bounds = _bounds(low, high, multiple_px)
    steps = [_steps(size, multiple_px) for size in sizes]
    extents = _compare(first.unit, first.call, second.call, steps, sizes)
    answers = _compare(first.unit, first.answer, second.answer, steps, sizes)
    names = {s for shape in (*extents.values(), *answers.values()) for s in _names(shape)}
    symbols = tuple((n, *bounds[n]) for n in SYMBOLS if n in names)
    if not {s for shape in extents.values() for s in _names(shape)}:
        raise BuildError(f"{first.unit}: nothing in its call changes with the resolution.")
    dims = {n: torch.export.Dim(n, min=low, max=high) for n, low, high in symbols}
    shapes = {n: _dynamic(v, n, extents, dims) for n, v in first.call.items()}
    return Range(symbols=symbols, extents=extents, answer_extents=answers, dynamic_shapes=shapes)


def _choices(low: int, high: int, step: int) -> list[int]:
    """At most nine values from `low` to `high`, on the grid."""
    values = list(range(low, high + 1, step))
    return values[:: max(1, (len(values) + 7) // 8)]


def _separation(sizes: tuple[Size, Size], low: Size, high: Size) -> float:
    """How far apart the ratios of height, width, area and 1 are; 0 when two are the same."""
    first, second = sizes
    width, height = Fraction(second[0], first[0]), Fraction(second[1], first[1])
    moving = [r for r, a, b in zip((width, height), low, high, strict=True) if a != b]
    ratios = [Fraction(1), *moving] + ([width * height] if len(moving) == 2 else [])
    logs = sorted(float(r) for r in ratios)
    return min(b / a - 1 for a, b in pairwise(logs))


def _bounds(low: Size, high: Size, step: int) -> dict[str, tuple[int, int]]:
    (w0, h0), (w1, h1) = ((w // step, h // step) for w, h in (low, high))
    return {"h": (h0, h1), "w": (w0, w1), "hw": (h0 * w0, h1 * w1)}


def _steps(size: Size, step: int) -> dict[str, int]:
    width, height = size[0] // step, size[1] // step
    return {"h": height, "w": width, "hw": height * width}


def _compare(
    unit: str, first: Any, second: Any, steps: list[dict[str, int]], sizes: tuple[Size, Size]
) -> dict[str, tuple[Extent, ...]]:
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
                    f"{_text(sizes[0])} and {_brief(b)} at {_text(sizes[1])}, and compiled code "
                    "holds such a value fixed. Build each resolution for itself."
                )
        elif a.dtype != b.dtype or a.dim() != b.dim():
            raise BuildError(f"{unit} can't be dynamic: {where} changes its dtype or rank.")
        elif a.shape != b.shape:
            found[path] = tuple(
                _extent(unit, f"{where} dimension {i}", pair, steps, sizes)
                for i, pair in enumerate(zip(a.shape, b.shape, strict=True))
            )
    return found


def _extent(
    unit: str,
    where: str,
    pair: tuple[int, int],
    steps: list[dict[str, int]],
    sizes: tuple[Size, Size],
) -> Extent:
    if pair[0] == pair[1]:
        return int(pair[0])
    for symbol in SYMBOLS:
        factors = [Fraction(n, s[symbol]) for n, s in zip(pair, steps, strict=True)]
        if factors[0] == factors[1] and factors[0].denominator == 1:
            return f"{factors[0]}*{symbol}"
    raise BuildError(
        f"{unit} can't be dynamic because of {where}: {pair[0]} at {_text(sizes[0])} and {pair[1]} "
        f"at {_text(sizes[1])} is a whole multiple of neither height, width nor area in steps of "
        "the recipe's multiple_px."
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


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _brief(value: object) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)[:80]
