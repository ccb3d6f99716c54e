"""Keys before anything is compiled: what changes them, what doesn't."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from aotbuild.build.plan import plan
from aotbuild.build.request import BuildRequest
from aotbuild.build.tuning import TuningTable, write_table
from aotbuild.errors import RecipeError, TargetError, UsageError
from aotbuild.recipe import (
    CallRecipe,
    ComponentRecipe,
    Int8Filter,
    Recipe,
    TensorRecipe,
    VariantRecipe,
    load_recipe,
)

TINY = load_recipe("tiny")


def keys(recipe: Recipe, store: Path, **changes: Any) -> dict[tuple[str, str], str]:
    """(unit, variant) -> key of what a request asks for."""
    request = BuildRequest(
        recipe=recipe, gpu="x86-64-v3", resolutions=("64x64",), batches=(1,), store=store
    )
    return {(p.component, p.variant): p.key for p in plan(replace(request, **changes))}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    return keys(TINY, tmp_path_factory.mktemp("store"))


def with_unet(**changes: Any) -> Recipe:
    unet: ComponentRecipe = replace(TINY.components["unet"], **changes)
    return replace(TINY, components={**TINY.components, "unet": unet})


def with_call(**changes: Any) -> Recipe:
    return replace(TINY, call=replace(TINY.call, **changes))


def longer_prompts() -> dict[str, TensorRecipe]:
    return {
        name: replace(t, shape=tuple(154 if e == 77 else e for e in t.shape))
        for name, t in TINY.call.tensors.items()
    }


CHANGES = {
    "cpu": with_unet(cpu={"memory_format": "contiguous"}),
    "tensors": with_call(tensors=longer_prompts()),
    "arguments": with_call(arguments={"guidance_scale": 1.0}),
    "variants": with_call(variants={"guided": VariantRecipe(arguments={"guidance_scale": 1.0})}),
    "memory_format": with_unet(memory_format="contiguous"),
    "fuse_qkv": with_unet(fuse_qkv=False),
    "attention": with_unet(fuse_qkv=False, attention="math"),
    "rules": with_unet(rules={}),
    "inductor": with_unet(inductor={"epilogue_fusion": True}),
    "dtype": replace(TINY, dtype="bf16"),
    "tf32": replace(TINY, dtype="tf32"),
}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_key_changes_when_one_field_of_the_recipe_does(
    base: dict[tuple[str, str], str], tmp_path: Path, field: str
) -> None:
    assert keys(CHANGES[field], tmp_path)["unet", "guided"] != base["unet", "guided"]


INT8 = Int8Filter(min_in_features=17, pointwise_channels=(64,), skip_layers=("time_embedding.*",))
INT8_CHANGES = {
    "quantization": with_unet(int8=INT8),
    "min_in_features": replace(INT8, min_in_features=33),
    "skip_shapes": replace(INT8, skip_shapes=((64, 64),)),
    "skip_layers": replace(INT8, skip_layers=()),
    "pointwise_channels": replace(INT8, pointwise_channels=()),
}


@pytest.mark.parametrize("field", sorted(INT8_CHANGES))
def test_key_changes_when_one_field_of_the_int8_filter_does(tmp_path: Path, field: str) -> None:
    quantized = with_unet(quantization="int8dq", int8=INT8)
    changed = INT8_CHANGES[field]
    other = (
        with_unet(quantization="int8dq", int8=changed)
        if isinstance(changed, Int8Filter)
        else changed
    )
    assert keys(other, tmp_path)["unet", "guided"] != keys(quantized, tmp_path)["unet", "guided"]


def test_key_of_an_unquantized_unit_says_nothing_of_a_filter(
    base: dict[tuple[str, str], str], tmp_path: Path
) -> None:
    admits_nothing = with_unet(quantization="int8dq", int8=Int8Filter(skip_layers=("*",)))
    assert keys(with_unet(int8=INT8), tmp_path) == base
    assert keys(admits_nothing, tmp_path) == base


LABELS = {"format", "name", "title", "checkpoint", "revision"}
ELSEWHERE = {
    "pipeline", "architecture", "components", "methods", "call", "resolution", "multiple_px",
    "batch", "int8", "ip_adapters", "shape", "fill", "count", "preparations", "blocks", "lengths",
    "optional", "tiling",
}  # fmt: skip
"""Fields that decide which calls of which module are recorded, and so come in by way of those."""


def test_every_field_of_a_recipe_is_a_label_or_is_known_to_change_keys() -> None:
    classes = (Recipe, ComponentRecipe, CallRecipe, Int8Filter, VariantRecipe, TensorRecipe)
    found = {f.name for cls in classes for f in fields(cls)}
    assert found - LABELS - ELSEWHERE <= {*CHANGES, *INT8_CHANGES}


@pytest.mark.parametrize(
    "changes",
    [{"gpu": "x86-64-v4"}, {"resolutions": ("72x64",)}, {"batches": (2,)}],
    ids=["level", "resolution", "batch"],
)
def test_key_changes_when_target_or_call_does(
    base: dict[tuple[str, str], str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert keys(TINY, tmp_path, **changes)["unet", "guided"] != base["unet", "guided"]


def test_key_stays_when_folder_language_threads_and_labels_differ(
    base: dict[tuple[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "LANG": "de_DE.UTF-8",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "3",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    relabelled = replace(TINY, title="another", name="another", checkpoint="some/repo")
    assert keys(relabelled, tmp_path / "deeper") == base
    assert os.environ["LANG"] == "de_DE.UTF-8"


def test_decoder_is_planned_once_when_two_variants_call_it_the_same(
    base: dict[tuple[str, str], str],
) -> None:
    assert sorted(base) == [("unet", "guided"), ("unet", "unguided"), ("vae.decode", "guided")]


@pytest.mark.parametrize("name", ["vae", "vae.decode"])
def test_plan_has_one_component_when_it_alone_is_named(tmp_path: Path, name: str) -> None:
    assert sorted(keys(TINY, tmp_path, components=(name,))) == [("vae.decode", "guided")]


@pytest.mark.parametrize("name", ["vae.encode", "va", "vae.", ""])
def test_plan_refuses_when_the_pipeline_calls_no_such_component(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"this recipe's pipeline calls unet, vae\.decode"):
        keys(TINY, tmp_path, components=("unet", name))


def test_plan_refuses_when_no_variants_pipeline_calls_a_unit(tmp_path: Path) -> None:
    vae = replace(TINY.components["vae"], methods=("decode", "encode"))
    control = VariantRecipe(pipeline="StableDiffusionXLPAGPipeline")
    recipe = replace(
        with_call(variants={"guided": VariantRecipe(), "other": control}),
        components={**TINY.components, "vae": vae},
    )
    with pytest.raises(RecipeError, match=r"vae\.encode, but .* call no such unit; there are unet"):
        keys(recipe, tmp_path)


def test_plan_refuses_before_any_work_when_the_gpu_can_not(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="bf16"):
        keys(replace(TINY, dtype="bf16"), tmp_path, gpu="t4")
    with pytest.raises(TargetError):
        keys(TINY, tmp_path, gpu="a1000")


def test_range_has_one_plan_for_each_unit_and_says_its_steps(tmp_path: Path) -> None:
    request = BuildRequest(
        recipe=TINY,
        gpu="x86-64-v3",
        resolutions=(),
        batches=(1,),
        dynamic=("64x64", "192x192"),
        store=tmp_path,
    )
    planned = {(p.component, p.variant): p for p in plan(request)}
    signature = planned["unet", "guided"].signature
    assert signature.dynamic
    assert {n for n, _, _ in signature.symbols} == {"h", "w"}
    assert planned["unet", "guided"].resolution == "64x64:192x192"


def test_tune_is_refused_when_the_gpu_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="--tune measures on the GPU"):
        keys(TINY, tmp_path, tune=True)


@pytest.mark.cuda_build
def test_key_changes_when_a_tuning_table_lies_beside_the_recipe(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    before = keys(TINY, tmp_path, gpu="a100", recipe_path=recipe)
    table = TuningTable(
        format=1, arch="sm_80", gpu="A100", torch="2.14.1", choices={"0": {"XBLOCK": 1}}
    )
    write_table(tmp_path / "mine.sm_80.tuning.json", table)
    after = keys(TINY, tmp_path, gpu="a100", recipe_path=recipe)
    assert not set(before.values()) & set(after.values())
    assert keys(TINY, tmp_path, gpu="h100", recipe_path=recipe) != after
