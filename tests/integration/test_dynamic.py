"""One artifact for a range of resolutions: every size within equals eager, and the rest is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import checkpointed_pipeline, picture, small_recipe
from tiny import fallbacks, hits

import aotbuild
from aotbuild.bench.pipeline import random_pipeline
from aotbuild.build.request import BuildRequest
from aotbuild.build.run import build
from aotbuild.build.verify import relative_l2
from aotbuild.recipe import Recipe, load_recipe

TOLERANCE = 1e-4
"""Relative L2 of the picture in float32, as in test_pipelines.py."""


def load_range(recipe: Recipe, pipeline: Any, dynamic: tuple[str, str], store: Path) -> Any:
    """`pipeline` with one artifact for the range in each of its units."""
    request = BuildRequest(
        recipe=recipe,
        gpu="cpu",
        resolutions=(),
        batches=(1,),
        dynamic=dynamic,
        variants=("guided",),
        components=("unet", "vae.decode"),
        store=store,
        verify=False,
    )
    built = build(request)
    assert sorted(b.component for b in built) == ["unet", "vae.decode"]
    units = [b.component for b in built]
    return aotbuild.load(pipeline, store, store=store, components=units, self_check=False)


def at(recipe: Recipe, resolution: str) -> Recipe:
    """One guided call at a size that needn't be on the recipe's own grid."""
    return replace(recipe, call=replace(recipe.call, resolution=resolution, multiple_px=8))


@contextmanager
def eagerly(loaded: Any) -> Iterator[None]:
    """Within, the pipeline as it was before its methods were swapped."""
    modules = {id(u.component.module): u.component.module for u in loaded._units}
    swapped = [(m, n, v) for m in modules.values() for n, v in vars(m).items() if _swapped(v)]
    for module, name, _ in swapped:
        delattr(module, name)
    try:
        yield
    finally:
        for module, name, method in swapped:
            setattr(module, name, method)


def _swapped(value: object) -> bool:
    return hasattr(type(value), "__aotbuild_swapped__")


def check_sizes(loaded: Any, pipeline: Any, recipe: Recipe, sizes: tuple[str, ...]) -> None:
    """Every size equals eager, and no call of either unit fell back."""
    for size in sizes:
        before = hits(loaded)
        ours = picture(pipeline, at(recipe, size), steps=1)
        assert hits(loaded) > before
        assert fallbacks(loaded) == {}
        with eagerly(loaded):
            eager = picture(pipeline, at(recipe, size), steps=1)
        assert eager.std() > 0.01
        assert relative_l2([ours], [eager]) <= TOLERANCE


def check_outside(
    loaded: Any, pipeline: Any, recipe: Recipe, size: str, log: pytest.LogCaptureFixture
) -> list[str]:
    """What is logged of a call that the range isn't for, which is eager's in both units."""
    log.clear()
    before = hits(loaded)
    with log.at_level(logging.WARNING, logger="aotbuild"):
        picture(pipeline, at(recipe, size), steps=1)
    assert hits(loaded) == before
    assert set(fallbacks(loaded)) == {"unet", "vae.decode"}
    return [r.getMessage() for r in log.records if r.name.startswith("aotbuild")]


def test_one_artifact_serves_every_size_of_its_range_and_others_are_told_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = small_recipe("sd15", tmp_path / "sd15").vary("guided")
    pipeline = checkpointed_pipeline(recipe, tmp_path / "weights")
    whole = replace(recipe, call=replace(recipe.call, variants=load_recipe("sd15").call.variants))
    loaded = load_range(whole, pipeline, ("64x64", "192x192"), tmp_path / "store")
    check_sizes(loaded, pipeline, recipe, ("64x64", "128x128", "64x192"))
    said = check_outside(loaded, pipeline, recipe, "72x72", caplog)
    assert [text.split()[0] for text in said] == ["unet", "vae.decode"]
    assert all("for 64x64 to 192x192 in steps of 64 pixels" in text for text in said)
    assert check_outside(loaded, pipeline, recipe, "256x256", caplog) == []


@pytest.mark.slow
def test_sd15_serves_its_everyday_sizes_from_one_artifact_at_real_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = load_recipe("sd15").override(dtype="fp32")
    recipe = whole.vary("guided")
    pipeline = random_pipeline(recipe)
    loaded = load_range(whole, pipeline, ("512x512", "768x768"), tmp_path / "store")
    check_sizes(loaded, pipeline, recipe, ("512x512", "640x640", "512x768"))
    said = check_outside(loaded, pipeline, recipe, "520x520", caplog)
    assert [text.split()[0] for text in said] == ["unet", "vae.decode"]
    assert all("for 512x512 to 768x768 in steps of 64 pixels" in text for text in said)
