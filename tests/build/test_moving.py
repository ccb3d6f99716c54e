"""Where a call is rehearsed, so that height, width, area and lengths can be told apart."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from aotbuild.build.moving import inner_sizes, moving_between, range_over, settings_of
from aotbuild.build.rehearse import rehearse
from aotbuild.errors import BuildError, RecipeError
from aotbuild.recipe import (
    CallRecipe,
    LengthRecipe,
    Recipe,
    TensorRecipe,
    VariantRecipe,
    load_configs,
    load_recipe,
)

LOW, HIGH = (128, 128), (256, 192)
TOKENS = LengthRecipe(usual=7, smallest=2, largest=20)


def with_tokens(tokens: LengthRecipe) -> Recipe:
    """`tiny`, whose prompts are of a named length."""
    recipe = load_recipe("tiny")
    prompt = TensorRecipe(shape=("batch", "tokens", 64))
    tensors = {"prompt_embeds": prompt, "negative_prompt_embeds": prompt}
    call = replace(
        recipe.call, tensors={**recipe.call.tensors, **tensors}, lengths={"tokens": tokens}
    )
    return replace(recipe, call=call)


def calls(recipe: Recipe, unit: str, dynamic: tuple[str, str] | None) -> list[Any]:
    return [
        rehearse(
            recipe.at_lengths(s.lengths),
            load_configs("tiny"),
            resolution=s.resolution,
            batch=1,
            variant="guided",
        ).units[unit][0]
        for s in settings_of(recipe.vary("guided").call, dynamic)
    ]


def test_inner_sizes_tell_height_width_and_area_apart() -> None:
    first, second = inner_sizes(LOW, HIGH, 8)
    width, height = Fraction(second[0], first[0]), Fraction(second[1], first[1])
    assert len({Fraction(1), width, height, width * height}) == 4
    for width_px, height_px in (first, second):
        assert LOW[0] <= width_px <= HIGH[0]
        assert LOW[1] <= height_px <= HIGH[1]
        assert width_px % 8 == height_px % 8 == 0


def test_inner_sizes_begin_above_one_step_when_the_range_begins_there() -> None:
    first, _ = inner_sizes((64, 64), (192, 192), 64)
    assert min(first) > 64
    for high in (128, 192, 512):
        (width, height), _ = inner_sizes((64, 64), (64, high), 64)
        assert width == 64
        assert height > 64


def test_inner_sizes_hold_an_edge_when_only_the_other_moves() -> None:
    first, second = inner_sizes((128, 128), (128, 256), 64)
    assert first[0] == second[0] == 128
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ((256, 256), (128, 128), "is empty"),
        ((128, 128), (128, 128), "is empty"),
        ((100, 128), (256, 256), "multiples of 64"),
        ((128, 128), (192, 192), "too few sizes"),
    ],
)
def test_inner_sizes_refuse_when_the_range_tells_nothing(
    low: tuple[int, int], high: tuple[int, int], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        inner_sizes(low, high, 64)


def test_one_setting_is_enough_when_nothing_moves() -> None:
    (only,) = settings_of(with_tokens(LengthRecipe(usual=7)).call, None)
    assert (only.resolution, only.lengths, only.label) == (
        (128, 128),
        {"tokens": 7},
        "128x128, tokens 7",
    )


def test_settings_change_every_length_by_a_ratio_of_its_own_when_several_move() -> None:
    call = replace(
        with_tokens(TOKENS).call,
        lengths={"tokens": TOKENS, "words": TOKENS, "fixed": LengthRecipe(usual=3)},
    )
    first, second = settings_of(call, ("128x128", "256x192"))
    values = moving_between(call, ("128x128", "256x192"), (first, second)).values
    ratios = [Fraction(values[1][n], values[0][n]) for n in values[0]]
    assert list(values[0]) == ["h", "w", "hw", "tokens", "words"]
    assert len({Fraction(1), *ratios}) == 6
    assert first.lengths["fixed"] == second.lengths["fixed"] == 3


def test_settings_refuse_when_a_length_has_too_few_values() -> None:
    few = LengthRecipe(usual=2, smallest=2, largest=3)
    with pytest.raises(RecipeError, match="Length b has too few values"):
        settings_of(CallRecipe(resolution="8x8", multiple_px=8, lengths={"a": few, "b": few}), None)


def test_range_holds_the_length_alone_when_the_resolution_stands() -> None:
    recipe = with_tokens(TOKENS)
    found = range_over(recipe.call, None, calls(recipe, "unet", None))
    assert found is not None
    assert found.symbols == (("tokens", 2, 20),)
    assert found.extents == {"encoder_hidden_states": (2, "1*tokens", 64)}
    assert range_over(recipe.call, None, calls(recipe, "vae.decode", None)) is None


def test_range_holds_length_and_resolution_when_both_move() -> None:
    recipe, dynamic = with_tokens(TOKENS), ("128x128", "256x192")
    found = range_over(recipe.call, dynamic, calls(recipe, "unet", dynamic))
    assert found is not None
    assert found.symbols == (("h", 16, 24), ("w", 16, 32), ("tokens", 2, 20))


def test_range_names_the_length_when_a_dimension_is_no_multiple_of_it() -> None:
    recipe = with_tokens(LengthRecipe(usual=8, smallest=2, largest=20))
    halved = TensorRecipe(shape=("batch", "tokens/2", 64))
    tensors = {"prompt_embeds": halved, "negative_prompt_embeds": halved}
    call = replace(recipe.call, tensors={**recipe.call.tensors, **tensors})
    recipe = replace(recipe, call=call)
    with pytest.raises(BuildError, match=r"at 128x128, tokens 2 is .* nor of tokens"):
        range_over(recipe.call, None, calls(recipe, "unet", None))


def test_variant_has_lengths_of_its_own_when_it_says_so() -> None:
    recipe = with_tokens(LengthRecipe(usual=7))
    long = VariantRecipe(optional=True, lengths={"tokens": LengthRecipe(usual=14)})
    recipe = replace(recipe, call=replace(recipe.call, variants={"a": VariantRecipe(), "b": long}))
    assert recipe.call.default_variants == ("a",)
    assert recipe.vary("a").call.usual_lengths == {"tokens": 7}
    assert recipe.vary("b").call.usual_lengths == {"tokens": 14}
    assert recipe.at_lengths({"tokens": 5}).vary("b").call.usual_lengths == {"tokens": 5}
