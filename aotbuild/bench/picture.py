"""Two images and their difference as one picture; compares nothing but pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

MARGIN_PX = 8
LABEL_PX = 18
SIDE_PX = 320
"""Small images are enlarged to about this, whole pixels each."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two images of 8-bit pixels are apart.

    Attributes:
        largest: of any channel of any pixel, in 1/255. mean: of all channels of all pixels.
        pixels: how many differ at all.
        total: how many there are.
    """

    largest: int
    mean: float
    pixels: int
    total: int


def difference(left: Any, right: Any) -> Difference:
    """The pixelwise distance of two PIL images of one size."""
    apart = _apart(left, right)
    per_pixel = apart.max(axis=2)
    largest = int(per_pixel.max())
    differing = int((per_pixel > 0).sum())
    return Difference(largest, float(apart.mean()), differing, int(per_pixel.size))


def side_by_side(left: Any, right: Any, names: tuple[str, str]) -> Any:
    """One PIL image: left, right, and their difference made visible, each under its label."""
    from PIL import Image, ImageDraw

    apart = _apart(left, right)
    factor = 255 // max(1, int(apart.max()))
    shown = Image.fromarray((apart * factor).clip(0, 255).astype(np.uint8))
    panels = (
        (names[0], left),
        (names[1], right),
        (f"difference x {factor}" if apart.max() else "difference: none", shown),
    )
    scale = max(1, SIDE_PX // left.width)
    width, height = left.width * scale, left.height * scale
    size = (3 * width + 4 * MARGIN_PX, height + LABEL_PX + 2 * MARGIN_PX)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for i, (name, image) in enumerate(panels):
        x = MARGIN_PX + i * (width + MARGIN_PX)
        draw.text((x, MARGIN_PX // 2), name, fill="black")
        enlarged = image.convert("RGB").resize((width, height), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (x, LABEL_PX + MARGIN_PX))
    return sheet


def _apart(left: Any, right: Any) -> Any:
    a, b = (np.asarray(i.convert("RGB"), dtype=np.int16) for i in (left, right))
    return np.abs(a - b)
