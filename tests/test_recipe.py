"""Recipes: those that ship hold together; each mistake in one is an error that names the field."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from aotbuild.errors import RecipeError
from aotbuild.recipe import (
    DTYPES,
    CallRecipe,
    ComponentRecipe,
    Int8Filter,
    LengthRecipe,
    Recipe,
    TensorRecipe,
    VariantRecipe,
    check_resolution,
    load_configs,
    load_recipe,
    parse_recipe,
    parse_resolution,
    recipe_configs,
    recipe_names,
)

ROOT = Path(__file__).parent.parent

GOOD = """
format = 1
name = "mine"
title = "Mine"
pipeline = "StableDiffusionPipeline"
architecture = "sd15"
dtype = "bf16"

[components.unet]
methods = ["forward"]

[call]
resolution = "512x512"
multiple_px = 64

[call.tensors]
prompt_embeds = { shape = ["batch", 77, 768] }
"""


def test_names_hold_what_the_project_promises_to_ship() -> None:
    assert {"sd15", "sdxl", "tiny"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipe_has_its_name_and_its_configs(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    configs = recipe_configs(recipe)
    assert set(recipe.components) <= set(configs)


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_comes_back_equal_when_it_went_through_json(name: str) -> None:
    recipe = load_recipe(name)
    assert Recipe.from_json(recipe.to_json()) == recipe


MISTAKES = {
    "not TOML": (("format = 1", "format"), "Expected '='"),
    "another format": (("format = 1", "format = 2"), "it is of format 2, newer than format 1"),
    "an unknown field": (('title = "Mine"', 'titel = "Mine"'), "did you mean 'title'?"),
    "a missing field": (('pipeline = "StableDiffusionPipeline"', ""), ": pipeline: this field is"),
    "a missing field of a table": (("multiple_px = 64", ""), ": call.multiple_px: this field is"),
    "a missing field of a component": (
        ('methods = ["forward"]', "fuse_qkv = true"),
        ": components.unet.methods: this field is required, and missing.",
    ),
    "a wrong type": (("multiple_px = 64", 'multiple_px = "64"'), "expected int, found '64'"),
    "a bool for a number": (("multiple_px = 64", "multiple_px = true"), "expected int"),
    "a number for a list": (('["forward"]', "1"), "components.unet.methods: expected a list"),
    "a list for a table": (("[components.unet]", "[[components]]"), "expected a table"),
    "an unknown method": (('["forward"]', '["foward"]'), "did you mean 'forward'?"),
    "a method twice": (('["forward"]', '["decode", "decode"]'), "each method once"),
    "forward beside decode": (('["forward"]', '["forward", "decode"]'), "by forward, or by"),
    "an unknown dtype": (('"bf16"', '"bf17"'), "did you mean 'bf16'?"),
    "a name with spaces": (('name = "mine"', 'name = "My Own"'), "use lower case"),
    "an unknown layout": (
        ('methods = ["forward"]', 'methods = ["forward"]\nmemory_format = "channels"'),
        "memory_format",
    ),
    "an unknown rule": (
        ('methods = ["forward"]', 'methods = ["forward"]\nrules = { timestep = "t/1" }'),
        "rules: 't/1'",
    ),
    "an unknown preparation": (
        ('methods = ["forward"]', 'methods = ["forward"]\npreparations = ["real_rotery"]'),
        "did you mean 'real_rotary'?",
    ),
    "a preparation twice": (
        (
            'methods = ["forward"]',
            'methods = ["forward"]\npreparations = ["real_rotary", "real_rotary"]',
        ),
        "preparations: name each once",
    ),
    "fused math": (
        ('methods = ["forward"]', 'methods = ["forward"]\nfuse_qkv = true\nattention = "math"'),
        "fuse_qkv needs attention",
    ),
    "a fused image prompt": (
        ('methods = ["forward"]', 'methods = ["forward"]\nip_adapters = [8]\nfuse_qkv = true'),
        "ip_adapters: their attention",
    ),
    "off its own grid": (('"512x512"', '"500x512"'), "nearest is 512x512"),
    "no such extent": (('"batch"', '"images"'), "'images' is none of batch, height, width"),
    "a length of nothing": (
        ("[call.tensors]", "lengths.n = { usual = 0 }\n[call.tensors]"),
        "usual",
    ),
    "half a range of lengths": (
        ("[call.tensors]", "lengths.n = { usual = 8, largest = 9 }\n[call.tensors]"),
        "both smallest and largest",
    ),
    "a range of lengths without the usual one": (
        ("[call.tensors]", "lengths.n = { usual = 1, smallest = 2, largest = 9 }\n[call.tensors]"),
        "smallest <= usual <= largest",
    ),
    "a length by a size's name": (
        ("[call.tensors]", "lengths.h = { usual = 8 }\n[call.tensors]"),
        "'h' can't be a length's name",
    ),
    "nothing to build": (
        ("[call.tensors]", "variants = { plain = { optional = true } }\n[call.tensors]"),
        "at least one must not be optional",
    ),
    "no such fraction": (('"batch"', '"height/0"'), "'height/0' is not a number"),
    "a list of nothing": (("768]", "768], count = 0"), "count must be at least 1"),
    "a variant's argument outside its table": (
        ("[call.tensors]", "variants = { plain = { guidance_scale = 1.0 } }\n[call.tensors]"),
        "call.variants.plain.guidance_scale: unknown field",
    ),
    "a grid of nothing": (("multiple_px = 64", "multiple_px = 0"), "at least 1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_parse_names_the_field_when_it_holds(mistake: str) -> None:
    (old, new), expected = MISTAKES[mistake]
    assert old in GOOD
    with pytest.raises(RecipeError) as caught:
        parse_recipe(GOOD.replace(old, new), where="mine.toml")
    assert expected in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_load_takes_a_file_of_ones_own_when_given_a_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_recipe(str(path)).components["unet"] == ComponentRecipe(methods=("forward",))


@pytest.mark.parametrize("written", ["./configs/", "configs/", "../sub/configs/", "absolute"])
def test_load_finds_configs_from_the_files_own_folder_when_it_is_called_elsewhere(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = tmp_path / "sub" / "configs"
    configs.mkdir(parents=True)
    configs.joinpath("unet.json").write_text('{"_class_name": "U"}')
    path = tmp_path / "sub" / "mine.toml"
    architecture = f"{configs}/" if written == "absolute" else written
    path.write_text(GOOD.replace('architecture = "sd15"', f'architecture = "{architecture}"'))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for given in ("../sub/mine.toml", str(path)):
        assert load_configs(load_recipe(given).architecture) == {"unet": {"_class_name": "U"}}


@pytest.mark.parametrize("name", ["controlnet.json", "config.json"])
def test_configs_of_one_component_come_from_its_own_folder_when_the_recipe_says_so(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / name).write_text('{"_class_name": "ControlNetModel"}')
    path = tmp_path / "mine.toml"
    own = '[components.controlnet]\nmethods = ["forward"]\narchitecture = "./control/"\n[call]'
    path.write_text(GOOD.replace("[call]", own))
    recipe = load_recipe(str(path))
    configs = recipe_configs(recipe)
    assert configs["controlnet"] == {"_class_name": "ControlNetModel"}
    assert configs["unet"] == load_configs("sd15")["unet"]
    bare = recipe.without_folders()
    assert (bare.architecture, bare.components["controlnet"].architecture) == ("sd15", "control")


def test_configs_are_refused_when_a_components_own_folder_lacks_it(tmp_path: Path) -> None:
    (tmp_path / "unet.json").write_text("{}")
    component = ComponentRecipe(methods=("forward",), architecture=f"{tmp_path}/")
    recipe = replace(load_recipe("sd15"), components={"controlnet": component})
    with pytest.raises(RecipeError, match=r"controlnet\.json nor config\.json .* there are unet"):
        recipe_configs(recipe)


def test_vary_works_in_what_the_variant_says_and_nothing_else() -> None:
    image = TensorRecipe(shape=("batch", 3, "height", "width"))
    recipe = load_recipe("tiny")
    variant = VariantRecipe(pipeline="Other", arguments={"strength": 0.5}, tensors={"image": image})
    call = replace(recipe.call, variants={"plain": VariantRecipe(), "other": variant})
    recipe = replace(recipe, call=call)
    assert recipe.pipelines == (recipe.pipeline, "Other")
    other = recipe.vary("other")
    assert other.pipeline == "Other"
    assert other.call.arguments == {**recipe.call.arguments, "strength": 0.5}
    assert other.call.tensors == {**recipe.call.tensors, "image": image}
    plain = recipe.vary("plain")
    assert plain == replace(recipe, call=replace(recipe.call, variants={}))
    assert plain.vary("default") == plain


def test_extents_follow_the_call_and_its_whole_fractions() -> None:
    tensor = TensorRecipe(shape=("batch", 3, "height/4", "width"))
    assert tensor.extents({"batch": 2, "height": 64, "width": 96}) == (2, 3, 16, 96)
    with pytest.raises(ValueError, match="height is 66 here, which 4 doesn't divide"):
        tensor.extents({"batch": 2, "height": 66, "width": 96})


def test_load_offers_the_nearest_name_when_it_is_unknown() -> None:
    with pytest.raises(RecipeError, match="Did you mean sdxl"):
        load_recipe("sdlx")


def test_override_changes_what_was_said_and_nothing_else() -> None:
    recipe = load_recipe("sd15")
    changed = recipe.override(dtype="fp32", resolution="768x512", batch=2)
    assert (changed.dtype, changed.call.resolution, changed.call.batch) == ("fp32", "768x512", 2)
    assert changed.override(dtype=recipe.dtype, resolution="512x512", batch=1) == recipe


def test_torch_dtype_is_float32_when_only_the_products_are_tf32() -> None:
    dtypes = {name: load_recipe("sd15").override(dtype=name).torch_dtype for name in DTYPES}
    assert dtypes == {
        "fp32": "float32",
        "tf32": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
    }


def test_resolution_is_width_then_height() -> None:
    assert parse_resolution("640x480") == (640, 480)
    assert check_resolution("640x512", 64) == (640, 512)


@pytest.mark.parametrize("text", ["", "512", "512 x 512", "0x512", "512X512", "-1x5", "512x512x3"])
def test_resolution_is_refused_when_it_is_written_otherwise(text: str) -> None:
    with pytest.raises(ValueError, match="WIDTHxHEIGHT"):
        parse_resolution(text)


def test_configs_are_read_when_they_lie_as_diffusers_lays_them(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "config.json").write_text('{"_class_name": "UNet2DConditionModel"}')
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "scheduler_config.json").write_text('{"_class_name": "X"}')
    (tmp_path / "model_index.json").write_text('{"_class_name": "P"}')
    configs = load_configs(f"{tmp_path}/")
    assert configs["unet"]["_class_name"] == "UNet2DConditionModel"
    assert configs["scheduler"]["_class_name"] == "X"
    assert configs["model_index"]["_class_name"] == "P"


def test_configs_are_refused_when_one_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "unet.json").write_text("{")
    with pytest.raises(RecipeError, match=r"unet\.json isn't JSON"):
        load_configs(f"{tmp_path}/")


@pytest.mark.parametrize("text", ["[]", "1", "null", '"unet"'])
@pytest.mark.parametrize("name", ["model_index.json", "unet.json", "unet/config.json"])
def test_configs_are_refused_when_one_is_not_an_object(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / name).write_text(text)
    with pytest.raises(RecipeError, match=r"json holds .* a config is a JSON object"):
        load_configs(f"{tmp_path}/")


def test_configs_are_refused_when_there_is_no_such_architecture() -> None:
    with pytest.raises(RecipeError, match="No component configs"):
        load_configs("sd99")


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (Recipe, "Every recipe"),
        (ComponentRecipe, "Every component"),
        (CallRecipe, "Every call"),
        (TensorRecipe, "Every tensor"),
        (LengthRecipe, "Every length"),
    ],
)
def test_document_names_the_required_fields(cls: type, what: str) -> None:
    text = " ".join((ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split())
    sentence = text.partition(f"{what} must say ")[2].partition(";")[0]
    required = {f.name for f in fields(cls) if MISSING is f.default is f.default_factory}
    assert set(re.findall(r"`(\w+)`", sentence)) == required


@pytest.mark.parametrize(
    "cls", [Recipe, ComponentRecipe, CallRecipe, VariantRecipe, TensorRecipe, LengthRecipe]
)
def test_document_explains_every_field_when_one_is_added(cls: type) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    missing = [f.name for f in fields(cls) if f"| `{f.name}` |" not in text]
    assert not missing


def test_document_shows_a_recipe_that_reads(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    example = text.partition("```toml\n")[2].partition("```")[0]
    assert parse_recipe(example, where="docs").name == "my-finetune"


@pytest.mark.parametrize(
    "field",
    [
        {"min_in_features": -1},
        {"skip_shapes": ((-4, 4),)},
        {"skip_shapes": ((4, 0),)},
        {"pointwise_channels": (320, -320)},
        {"pointwise_channels": (0,)},
    ],
)
def test_filter_is_refused_when_a_width_is_none(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        Int8Filter(**field)
