"""The call of a pipeline that a recipe builds for, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = bool | int | float | str
SIZES = ("batch", "height", "width")
EXTENT = re.compile(r"([a-z][a-z0-9_]*)(?:/([1-9]\d*))?")

RESERVED = ("h", "w", "hw")
"""Names that ranges of resolutions have in signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecipe:
    """A tensor that the caller hands to the pipeline: embeddings, an image, a mask.

    Attributes:
        shape: extents; "batch", "height", "width" (in pixels) and the names of the call's `lengths`
            stand for the call's own, and "height/4" for a whole fraction of it.
        dtype: "float" follows the precision; else torch's name, "int64".
        fill: the value of every element.
        count: the argument is a list of so many of them; None: the tensor itself.
    """

    shape: tuple[int | str, ...]
    dtype: str = "float"
    fill: float = 0.0
    count: int | None = None

    def __post_init__(self) -> None:
        for extent in self.shape:
            if isinstance(extent, str) and not EXTENT.fullmatch(extent):
                raise ValueError(
                    f"shape: {extent!r} is not a number, batch, height, width, one of the call's "
                    "lengths, or a fraction of these, like height/4"
                )
        if self.count is not None and self.count < 1:
            raise ValueError("count must be at least 1")

    def extents(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape at `sizes`: the call's "batch", "height", "width" and lengths by name.

        Raises:
            ValueError: a fraction that doesn't come out even.
        """
        return tuple(_extent(e, sizes) for e in self.shape)


def _extent(extent: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    match = EXTENT.fullmatch(extent)
    assert match is not None
    size, divisor = sizes[match[1]], int(match[2] or 1)
    if size % divisor:
        raise ValueError(f"{extent}: {match[1]} is {size} here, which {divisor} doesn't divide")
    return size // divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRecipe:
    """An extent with a name of its own: the tokens of a prompt.

    Attributes:
        usual: what it is if nothing else is said.
        smallest: with `largest`, the range that one artifact serves; None: `usual` alone.
        largest: see `smallest`.
    """

    usual: int
    smallest: int | None = None
    largest: int | None = None

    def __post_init__(self) -> None:
        if (self.smallest is None) != (self.largest is None):
            raise ValueError("a range needs both smallest and largest")
        if self.smallest is None or self.largest is None:
            if self.usual < 1:
                raise ValueError("usual must be at least 1")
        elif not 2 <= self.smallest <= self.usual <= self.largest > self.smallest:
            raise ValueError(
                f"expected 2 <= smallest <= usual <= largest, and a range that isn't empty; found "
                f"{self.smallest}, {self.usual}, {self.largest} (an extent of 1 is a call of its "
                "own)"
            )

    @property
    def range(self) -> tuple[int, int] | None:
        """(smallest, largest), or None where it is fixed."""
        if self.smallest is None or self.largest is None:
            return None
        return self.smallest, self.largest


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRecipe:
    """What one call to build for says otherwise than the recipe.

    Attributes:
        optional: it is built only if asked for by name.
        pipeline: another pipeline class over the same components: image to image, inpainting.
        arguments: of the pipeline's `__call__`, that differ or come on top.
        tensors: the same, of tensor arguments.
        lengths: the same, of named extents.
    """

    optional: bool = False
    pipeline: str | None = None
    arguments: dict[str, Scalar] = field(default_factory=dict)
    tensors: dict[str, TensorRecipe] = field(default_factory=dict)
    lengths: dict[str, LengthRecipe] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecipe:
    """The pipeline call that a rehearsal makes.

    Attributes:
        resolution: "WIDTHxHEIGHT" in pixels.
        multiple_px: width and height must be multiples of it.
        batch: images per prompt call, before guidance doubles it.
        arguments: further arguments of the pipeline's `__call__`.
        tensors: tensor arguments by name; they stand in for the text encoders.
        lengths: extents of these that have names of their own.
        variants: calls to build for, by name; each holds what differs.
    """

    resolution: str
    multiple_px: int
    batch: int = 1
    arguments: dict[str, Scalar] = field(default_factory=dict)
    tensors: dict[str, TensorRecipe] = field(default_factory=dict)
    lengths: dict[str, LengthRecipe] = field(default_factory=dict)
    variants: dict[str, VariantRecipe] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.multiple_px < 1 or self.batch < 1:
            raise ValueError("multiple_px and batch must be at least 1")
        check_resolution(self.resolution, self.multiple_px)
        if self.variants and not self.default_variants:
            raise ValueError("variants: at least one must not be optional")
        self._check_names()

    def _check_names(self) -> None:
        """Every extent's name stands for something, and no length for what is no length."""
        for variant in self.variants.values() or (VariantRecipe(),):
            lengths = {**self.lengths, **variant.lengths}
            for name in lengths:
                if name in (*SIZES, *RESERVED) or not re.fullmatch("[a-z][a-z0-9_]*", name):
                    raise ValueError(f"lengths: {name!r} can't be a length's name")
            for tensor, recipe in {**self.tensors, **variant.tensors}.items():
                for extent in recipe.shape:
                    name = str(extent).partition("/")[0]
                    if isinstance(extent, str) and name not in (*SIZES, *lengths):
                        raise ValueError(
                            f"tensors.{tensor}: {extent!r} is none of {', '.join(SIZES)}, and "
                            f"`lengths` has {', '.join(sorted(lengths)) or 'nothing'}"
                        )

    @property
    def default_variants(self) -> tuple[str, ...]:
        """The variants that are built if none is asked for."""
        return tuple(n for n, v in self.variants.items() if not v.optional)

    @property
    def usual_lengths(self) -> dict[str, int]:
        """Each named length as it is if nothing else is said."""
        return {name: length.usual for name, length in self.lengths.items()}


def parse_resolution(text: str) -> tuple[int, int]:
    """(width, height) in pixels of "WIDTHxHEIGHT".

    Raises:
        ValueError: it isn't of that form.
    """
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if match is None:
        raise ValueError(f"resolution {text!r}: write WIDTHxHEIGHT in pixels, like 1024x1024")
    return int(match[1]), int(match[2])


def check_resolution(text: str, multiple_px: int) -> tuple[int, int]:
    """`parse_resolution`, and a ValueError naming the nearest sizes if it isn't on the grid."""
    width, height = parse_resolution(text)
    if width % multiple_px or height % multiple_px:
        near = "x".join(str(max(1, round(n / multiple_px)) * multiple_px) for n in (width, height))
        raise ValueError(
            f"resolution {text} isn't a multiple of {multiple_px} pixels, as this model needs; "
            f"the nearest is {near}"
        )
    return width, height
