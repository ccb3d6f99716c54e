"""The calls of repeated blocks: which are alike, how they lie, what a recipe may say of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aotbuild.build.calls import RecordedCall
from aotbuild.build.layers import judge_layers
from aotbuild.build.rehearse import rehearse
from aotbuild.errors import RecipeError
from aotbuild.loaders.blocks import find_blocks
from aotbuild.recipe import Int8Filter, Recipe, load_configs, load_recipe

TINY = load_recipe("tiny")
CONFIGS = load_configs("tiny")
LABEL = "unet.BasicTransformerBlock"


def with_unet(**changes: Any) -> Recipe:
    unet = replace(TINY.components["unet"], **changes)
    return replace(TINY, components={**TINY.components, "unet": unet})


def units(recipe: Recipe = TINY, configs: Any = CONFIGS) -> dict[str, tuple[RecordedCall, ...]]:
    return rehearse(
        recipe, configs, resolution=(128, 128), batch=1, variant="guided", scope="regional"
    ).units


def test_alike_blocks_share_one_call_and_a_component_without_blocks_stays_whole() -> None:
    found = units()
    assert list(found) == [LABEL, "vae.decode"]
    (recorded,) = found[LABEL]
    assert recorded.block is not None
    blocks = find_blocks(recorded.module(), {"BasicTransformerBlock"})
    assert sorted(recorded.block.paths) == sorted(blocks)
    assert recorded.part(recorded.module()).__class__.__name__ == "BasicTransformerBlock"
    assert found["vae.decode"][0].block is None


def test_blocks_of_other_widths_are_other_calls() -> None:
    wide = {**CONFIGS["unet"], "transformer_layers_per_block": [1, 2]}
    wide |= {
        "down_block_types": ["CrossAttnDownBlock2D"] * 2,
        "up_block_types": ["CrossAttnUpBlock2D"] * 2,
    }
    found = units(configs={**CONFIGS, "unet": wide})[LABEL]
    assert len(found) == 2
    assert len({c.identity.config_sha256 for c in found}) == 2


def test_recipe_names_other_blocks_when_it_says_so() -> None:
    found = units(with_unet(blocks=("ResnetBlock2D",)))
    assert {label for label in found if label != "vae.decode"} == {"unet.ResnetBlock2D"}
    paths = [c.block.paths for c in found["unet.ResnetBlock2D"] if c.block]
    assert sum(map(len, paths)) == len({p for group in paths for p in group})


def test_recipe_is_refused_when_it_names_a_class_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"blocks names BasicTransfomerBlock.*did you mean Basic"):
        units(with_unet(blocks=("BasicTransfomerBlock",)))


def test_call_is_contiguous_when_blocks_get_tensors_that_lie_otherwise() -> None:
    recipe = load_recipe("pixart-alpha").override(resolution="256x256")
    found = rehearse(
        recipe,
        load_configs(recipe.architecture),
        resolution=(256, 256),
        batch=1,
        variant="guided",
        scope="regional",
    ).units["transformer.BasicTransformerBlock"]
    (recorded,) = found
    assert recorded.block is not None
    assert len(recorded.block.paths) == 28
    assert dict(recorded.tensors())["hidden_states"].is_contiguous()


def test_filter_is_refused_when_it_treats_alike_blocks_differently() -> None:
    (recorded,) = units()[LABEL]
    assert recorded.block is not None
    rule = Int8Filter(skip_layers=(f"{recorded.block.paths[0]}.ff.*",))
    component = replace(TINY.components["unet"], quantization="int8dq", int8=rule)
    with pytest.raises(RecipeError, match=r"one artifact serves both.*hold for all blocks alike"):
        judge_layers(recorded, component)


def test_layers_are_named_by_their_place_in_the_block() -> None:
    (recorded,) = units()[LABEL]
    component = replace(
        TINY.components["unet"], quantization="int8dq", int8=Int8Filter(min_in_features=17)
    )
    _, layers = judge_layers(recorded, component)
    assert {layer.path.partition(".")[0] for layer in layers} == {"attn1", "attn2", "ff"}
