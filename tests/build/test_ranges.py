"""Moving dimensions from two rehearsals: which symbol each follows, and what can't move."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from aotbuild.build.calls import RecordedCall
from aotbuild.build.moving import Setting, Size, inner_sizes, moving_between
from aotbuild.build.ranges import Moving, Range, find_range
from aotbuild.build.rehearse import rehearse
from aotbuild.errors import BuildError
from aotbuild.recipe import CallRecipe, load_configs, load_recipe

TINY = load_recipe("tiny")
LOW, HIGH = (128, 128), (256, 192)


def recorded(call: dict[str, Any], answer: Any) -> RecordedCall:
    """A call of our own making, on top of a real one of the same kind."""
    return replace(decode(), call=call, answer=answer)


@cache
def decode() -> RecordedCall:
    configs = load_configs("tiny")
    found = rehearse(TINY, configs, resolution=(64, 64), batch=1, variant="unguided")
    return found.units["vae.decode"][0]


def test_find_range_gives_each_dimension_its_symbol_and_factor() -> None:
    sizes = inner_sizes(LOW, HIGH, 8)
    first, second = (
        rehearse(TINY, load_configs("tiny"), resolution=s, batch=1, variant="guided") for s in sizes
    )
    unit = "unet"
    found = find_range(first.units[unit][0], second.units[unit][0], moving(sizes, 8))
    assert found is not None
    assert found.symbols == (("h", 16, 24), ("w", 16, 32))
    assert found.extents == {"sample": (2, 4, "2*h", "2*w")}
    assert found.answer_extents == {"0": (2, 4, "2*h", "2*w")}
    assert set(found.dynamic_shapes["sample"]) == {2, 3}
    assert found.dynamic_shapes["added_cond_kwargs"] == {"text_embeds": None, "time_ids": None}


def moving(sizes: tuple[Size, Size], multiple_px: int) -> Moving:
    """What moves when one is rehearsed at two sizes of the range from `LOW` to `HIGH`."""
    call = CallRecipe(resolution="128x128", multiple_px=multiple_px)
    first, second = (Setting(resolution=size) for size in sizes)
    return moving_between(call, tuple(f"{w}x{h}" for w, h in (LOW, HIGH)), (first, second))


def compare(first: dict[str, Any], second: dict[str, Any]) -> Range:
    answer = torch.empty(1, device="meta")
    calls = (recorded(first, answer), recorded(second, answer))
    found = find_range(*calls, moving(((128, 160), (256, 192)), 16))
    assert found is not None
    return found


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_find_range_shares_one_symbol_when_dimensions_move_together() -> None:
    found = compare(
        {"tokens": meta(1, 80, 4), "ids": [meta(80, 3)], "empty": {}},
        {"tokens": meta(1, 192, 4), "ids": [meta(192, 3)], "empty": {}},
    )
    assert found.extents == {"tokens": (1, "1*hw", 4), "ids.0": ("1*hw", 3)}
    assert found.symbols == (("hw", 64, 192),)
    assert found.dynamic_shapes["empty"] == {}
    assert set(found.dynamic_shapes["ids"][0]) == {0}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"x": meta(8), "height": 10},
            {"x": meta(16), "height": 12},
            "because of height: it is 10",
        ),
        ({"x": meta(10)}, {"x": meta(11)}, "because of x dimension 0: 10 at 128x160"),
        ({"x": meta(8)}, {"x": meta(8)}, "nothing in its call changes"),
        ({"x": meta(8)}, {"x": None}, "because of x: it is a tensor"),
    ],
)
def test_find_range_names_the_obstacle_when_the_unit_is_not_dynamic(
    first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        compare(first, second)
