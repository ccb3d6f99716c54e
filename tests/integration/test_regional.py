"""`--scope regional`: one artifact for each kind of block, in the stock pipeline, same picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import RECIPE, Tiny, fallbacks, hits, image, run_aotbuild

import aotbuild
from aotbuild.bench.pipeline import pipeline_inputs, random_pipeline
from aotbuild.build.rebuild import rebuild_entry
from aotbuild.build.request import BuildRequest
from aotbuild.build.run import build, plan
from aotbuild.build.verify import FLOOR, relative_l2
from aotbuild.cache.store import Store
from aotbuild.recipe import Recipe, load_configs, load_recipe

LABEL = "unet.BasicTransformerBlock"
ONE_STEP_OF_A_PIXEL = 1 / 255


def unet_of(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe's UNet alone, at its guided call."""
    call = replace(recipe.call, variants={"guided": recipe.call.variants["guided"]})
    unet = replace(recipe.components["unet"], **changes)
    return replace(recipe, components={"unet": unet}, call=call)


def request_of(recipe: Recipe, store: Path, **others: Any) -> BuildRequest:
    return BuildRequest(
        **{
            "recipe": recipe,
            "gpu": "cpu",
            "resolutions": (recipe.call.resolution,),
            "batches": (1,),
            "store": store,
            "scope": "regional",
            **others,
        }
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guided call's blocks, verified as they were built."""
    folder = tmp_path_factory.mktemp("regional") / "store"
    (built,) = build(request_of(unet_of(RECIPE), folder))
    assert built.verified
    return folder


@pytest.fixture
def loaded(store: Path, pipeline: Any) -> Iterator[aotbuild.Loaded]:
    found = aotbuild.load(pipeline, store, store=store, fallback="error")
    yield found
    found.restore()


def test_picture_equals_eager_and_every_block_hits_when_blocks_are_compiled(
    store: Path, pipeline: Any
) -> None:
    eager = image(pipeline)
    loaded = aotbuild.load(pipeline, store, store=store, fallback="error")
    ours = image(pipeline)
    assert eager.std() > 0.05  # a picture, not a blank
    assert np.abs(ours - eager).max() <= ONE_STEP_OF_A_PIXEL
    assert fallbacks(loaded) == {}
    assert hits(loaded) == 3 * 4  # steps, blocks
    assert loaded.metrics()[LABEL]["blocks"] == 4
    loaded.restore()
    assert np.array_equal(image(pipeline), eager)


def test_blocks_and_the_whole_make_the_same_picture(store: Path, tiny: Tiny) -> None:
    pictures = []
    for source in (store, tiny.store):
        pipeline = random_pipeline(RECIPE)
        loaded = aotbuild.load(pipeline, source, store=source, components=["unet"])
        pictures.append(torch.from_numpy(image(pipeline)))
        assert fallbacks(loaded) == {}
    assert relative_l2(pictures[:1], pictures[1:]) <= 10 * FLOOR


def test_freeu_goes_on_around_the_blocks_when_it_is_switched_on(
    pipeline: Any, loaded: aotbuild.Loaded
) -> None:
    pipeline.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    ours = image(pipeline)
    other = random_pipeline(RECIPE)
    other.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    assert np.abs(ours - image(other)).max() <= ONE_STEP_OF_A_PIXEL
    assert fallbacks(loaded) == {}


def test_plan_says_how_many_blocks_each_artifact_serves(tmp_path: Path) -> None:
    options = ("--gpu", "cpu", "--scope", "regional", "--store", str(tmp_path))
    done = run_aotbuild("plan", "tiny", *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["artifacts"]
    assert [(a["component"], a["scope"], len(a["blocks"])) for a in found] == [
        (LABEL, "regional", 4),
        ("vae.decode", "full", 0),
        (LABEL, "regional", 4),
    ]


def test_rebuilding_from_the_manifest_gives_the_same_bytes(store: Path) -> None:
    (entry,) = Store(store).entries()
    found = rebuild_entry(Store(store), entry)
    assert found["same"]
    assert found["differences"] == []


def test_one_artifact_serves_a_range_when_blocks_are_dynamic(tmp_path: Path, pipeline: Any) -> None:
    request = request_of(unet_of(RECIPE), tmp_path, dynamic=("64x64", "128x128"))
    (built,) = build(request)
    assert built.verified
    for width, height in ((128, 128), (96, 64)):
        eager = image(pipeline, width=width, height=height)
        loaded = aotbuild.load(pipeline, tmp_path, store=tmp_path, fallback="error")
        ours = image(pipeline, width=width, height=height)
        assert np.abs(ours - eager).max() <= ONE_STEP_OF_A_PIXEL
        loaded.restore()


def test_weights_of_the_blocks_are_freed_when_they_are_int8(tmp_path: Path, pipeline: Any) -> None:
    (built,) = build(request_of(unet_of(RECIPE.override(quantization="int8dq")), tmp_path))
    assert built.verified
    eager = image(pipeline)
    loaded = aotbuild.load(pipeline, tmp_path, store=tmp_path, fallback="error")
    metrics = loaded.metrics()[LABEL]
    assert metrics["freed_bytes"] > 3 * metrics["extra_bytes"] > 0
    ours = image(pipeline)
    assert fallbacks(loaded) == {}
    assert 0 < np.abs(ours - eager).max() < 0.2


@pytest.mark.slow
def test_sdxls_widths_make_two_artifacts_that_give_what_the_whole_gives(tmp_path: Path) -> None:
    recipe = load_recipe("sdxl").override(dtype="fp32", resolution="256x256", quantization="none")
    configs = load_configs(recipe.architecture)
    configs["unet"]["transformer_layers_per_block"] = [1, 2, 2]
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, config in configs.items():
        folder.joinpath(f"{name}.json").write_text(json.dumps(config))
    recipe = replace(unet_of(recipe), architecture=f"{folder}/")
    regional = build(request_of(recipe, tmp_path / "regional"))
    (whole,) = build(request_of(recipe, tmp_path / "full", scope="full"))
    assert all(b.verified for b in (*regional, whole))
    planned = plan(request_of(recipe, tmp_path / "regional"))
    assert len(planned) == len(regional) == 2
    blocks = sum(len(p.blocks) for p in planned)
    pipeline = random_pipeline(recipe)
    eager, answers = denoised(pipeline, recipe), []
    for source, calls in ((tmp_path / "regional", 2 * blocks), (tmp_path / "full", 2)):
        loaded = aotbuild.load(pipeline, source, store=source, fallback="error")
        answers.append(denoised(pipeline, recipe))
        assert (hits(loaded), fallbacks(loaded)) == (calls, {})
        loaded.restore()
    assert relative_l2(answers[0], eager) <= 10 * FLOOR
    assert relative_l2(answers[0], answers[1]) <= 10 * FLOOR


def denoised(pipeline: Any, recipe: Recipe) -> list[torch.Tensor]:
    """The latents after two steps, on the pipeline's own call."""
    with torch.no_grad():
        answer = pipeline(**pipeline_inputs(recipe, steps=2), output_type="latent")
    return [answer.images]
