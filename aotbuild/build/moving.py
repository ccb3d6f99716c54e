"""Where to rehearse a call, so that what moves in it can be told apart. Rehearses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product

from aotbuild.build.calls import RecordedCall
from aotbuild.build.ranges import Moving, Range, find_range
from aotbuild.errors import RecipeError
from aotbuild.recipe import CallRecipe, LengthRecipe, parse_resolution

Size = tuple[int, int]
"""(width, height) in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One rehearsal of a call.

    Attributes:
        resolution: (width, height) in pixels.
        lengths: the call's named lengths.
    """

    resolution: Size
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """ "832x480, tokens 128"."""
        width, height = self.resolution
        return ", ".join([f"{width}x{height}", *(f"{n} {v}" for n, v in self.lengths.items())])


def settings_of(call: CallRecipe, dynamic: tuple[str, str] | None) -> tuple[Setting, ...]:
    """One rehearsal of a call, or the two that tell its moving dimensions.

    Args:
        call: of one variant, see `Recipe.vary`.
        dynamic: (smallest, largest) resolution, where a range of these is asked for.

    Raises:
        RecipeError: a range with too few sizes or lengths to tell.
    """
    size = parse_resolution(call.resolution)
    sizes = (size, size)
    if dynamic is not None:
        low, high = map(parse_resolution, dynamic)
        sizes = inner_sizes(low, high, call.multiple_px)
    lengths = (call.usual_lengths, _other_lengths(call.lengths, _ratios(*sizes)))
    pair = tuple(Setting(resolution=s, lengths=n) for s, n in zip(sizes, lengths, strict=True))
    return pair if pair[0] != pair[1] else pair[:1]


def range_over(
    call: CallRecipe, dynamic: tuple[str, str] | None, recorded: Sequence[RecordedCall]
) -> Range | None:
    """The range of a unit over what `settings_of` moves, from its calls at these settings.

    Returns:
        None where nothing moves, or nothing of it in this unit's call.

    Raises:
        BuildError: as `find_range`.
    """
    if len(recorded) == 1:
        return None
    first, second = settings_of(call, dynamic)
    moving = moving_between(call, dynamic, (first, second))
    return find_range(recorded[0], recorded[1], moving)


def moving_between(
    call: CallRecipe, dynamic: tuple[str, str] | None, settings: tuple[Setting, Setting]
) -> Moving:
    """What moves between the two `settings_of` the same call and range."""
    bounds = {n: length.range for n, length in call.lengths.items() if length.range}
    values = tuple({n: s.lengths[n] for n in bounds} for s in settings)
    if dynamic is not None:
        low, high = map(parse_resolution, dynamic)
        bounds = {**_bounds(low, high, call.multiple_px), **bounds}
        values = tuple(
            {**_steps(s.resolution, call.multiple_px), **v}
            for s, v in zip(settings, values, strict=True)
        )
    first, second = settings
    return Moving(
        bounds=bounds,
        values=(values[0], values[1]),
        labels=(first.label, second.label),
        sizes=dynamic is not None,
    )


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
    candidates = [((a, c), (b, d)) for a, b, c, d in product(widths, widths, heights, heights)]
    # The first is the export's example, and a moving number that is 1 there would stay 1.
    several = [p for p in candidates if _several_steps(p[0], low, high, multiple_px)]
    found = max(several or candidates, key=lambda pair: _separation(pair, low, high))
    if _separation(found, low, high) == 0:
        raise RecipeError(
            f"Range {w0}x{h0}:{w1}x{h1} has too few sizes to tell width from height; widen it by "
            f"{multiple_px} pixels on one side, or build each resolution for itself."
        )
    return found


def _several_steps(size: Size, low: Size, high: Size, step: int) -> bool:
    """Whether each edge of `size` that moves within low..high is more than one step."""
    return all(n > step for n, a, b in zip(size, low, high, strict=True) if a != b)


def _other_lengths(lengths: dict[str, LengthRecipe], ratios: Iterable[Fraction]) -> dict[str, int]:
    """A second value for each length that moves, each changed by a ratio of its own."""
    taken, found = [Fraction(1), *ratios], {}
    for name, length in lengths.items():
        if length.range is None:
            found[name] = length.usual
            continue
        usual = length.usual
        others = [n for n in _choices(*length.range, 1) if n != usual]
        distances = {n: min(_apart(Fraction(n, usual), r) for r in taken) for n in others}
        found[name] = max(distances, key=lambda n: distances[n])
        if not distances[found[name]]:
            raise RecipeError(
                f"Length {name} has too few values to tell it from the other things that move: "
                "widen its range."
            )
        taken.append(Fraction(found[name], usual))
    return found


def _apart(first: Fraction, second: Fraction) -> float:
    return float(max(first, second) / min(first, second)) - 1


def _ratios(first: Size, second: Size) -> tuple[Fraction, ...]:
    """By how much width, height and area change."""
    width, height = Fraction(second[0], first[0]), Fraction(second[1], first[1])
    return width, height, width * height


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
