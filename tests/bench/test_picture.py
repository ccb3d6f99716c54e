"""The picture of two images and their difference."""

from __future__ import annotations

import numpy as np
from PIL import Image

from aotbuild.bench.picture import MARGIN_PX, difference, side_by_side

GREY = np.full((16, 16, 3), 100, dtype=np.uint8)


def changed(by: int) -> Image.Image:
    pixels = GREY.copy()
    pixels[3, 4, 1] += by
    return Image.fromarray(pixels)


def test_difference_counts_pixels_and_finds_the_largest() -> None:
    found = difference(Image.fromarray(GREY), changed(7))
    assert (found.largest, found.pixels, found.total) == (7, 1, 256)


def test_difference_is_nothing_when_the_images_are_equal() -> None:
    found = difference(Image.fromarray(GREY), Image.fromarray(GREY))
    assert (found.largest, found.pixels) == (0, 0)


def test_sheet_shows_the_difference_amplified_when_it_is_one_step() -> None:
    sheet = np.asarray(side_by_side(Image.fromarray(GREY), changed(1), ("eager", "artifact")))
    third = sheet[:, -(320 + MARGIN_PX) : -MARGIN_PX]
    assert (third == (0, 255, 0)).all(axis=2).sum() == 20 * 20
