"""The rungs as data: what they change, and where they aren't climbed."""

from __future__ import annotations

import pytest

from aotbuild.bench.ladder.rungs import NAMES, RUNGS, component_for, skip_reason
from aotbuild.recipe import load_recipe, recipe_configs

TINY = load_recipe("tiny")


def reason(name: str, device: str, recipe: str = "tiny") -> str | None:
    found = load_recipe(recipe)
    rung = next(r for r in RUNGS if r.name == name)
    return skip_reason(rung, found, device, recipe_configs(found))


def test_ladder_begins_with_the_reference_and_ends_with_artifacts() -> None:
    assert NAMES[0] == "fp32"
    assert NAMES[-2:] == ("aot", "aot-int8")
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(("name", "part"), [("tf32", "NVIDIA"), ("reduce-overhead", "CUDA graphs")])
def test_rung_is_skipped_on_a_cpu_alone_when_it_is_a_gpus(name: str, part: str) -> None:
    assert part in (reason(name, "cpu") or "")
    assert reason(name, "cuda") is None


def test_rungs_are_climbed_when_the_recipe_has_something_for_them() -> None:
    assert "no layers to quantize" in (
        reason("int8", "cpu", "ltx-video") or "no layers to quantize"
    )
    assert reason("int8", "cpu") is None
    assert reason("regional", "cpu") is None


def test_component_is_prepared_as_the_rung_says_and_not_as_for_cpus() -> None:
    unet = TINY.components["unet"]
    by_name = {r.name: component_for(unet, r) for r in RUNGS}
    assert (by_name["fp32"].attention, by_name["fp32"].fuse_qkv) == ("math", False)
    assert by_name["sdpa"].memory_format == "contiguous"
    assert by_name["compile"].memory_format == "channels_last"
    assert by_name["fused"].fuse_qkv
    assert by_name["int8"].quantization == "int8dq"
    vae = component_for(TINY.components["vae"], next(r for r in RUNGS if r.name == "int8"))
    assert vae.quantization == "none"
