"""A stock pipeline makes the same pictures with artifacts, and every swapped call is a hit."""

from __future__ import annotations

import copy
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tiny import RECIPE, Tiny, fallbacks, hits, image

import aotbuild
from aotbuild.bench.pipeline import random_pipeline
from aotbuild.build.examples import example_call
from aotbuild.build.verify import EAGER_FACTOR, FLOOR, relative_l2

SCHEDULERS = (
    "PNDMScheduler",
    "DDIMScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
    "LCMScheduler",
)
ONE_STEP_OF_A_PIXEL = 1 / 255


def test_image_equals_eager_and_every_call_hits_when_artifacts_are_loaded(
    pipeline: Any, tiny: Tiny
) -> None:
    eager = image(pipeline)
    loaded = aotbuild.load(pipeline, tiny.store, store=tiny.store)
    ours = image(pipeline)
    assert eager.std() > 0.05  # a picture, not a blank
    assert np.abs(ours - eager).max() <= ONE_STEP_OF_A_PIXEL
    assert fallbacks(loaded) == {}
    assert hits(loaded) == 3 + 1  # steps, and one decode
    loaded.restore()
    assert np.array_equal(image(pipeline), eager)


@pytest.mark.parametrize("guidance", [5.0, 1.0])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_hits_and_equals_eager_when_it_is_swapped_in(
    pipeline: Any, tiny: Tiny, name: str, guidance: float
) -> None:
    pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config)
    eager = image(pipeline, guidance_scale=guidance)
    loaded = aotbuild.load(pipeline, tiny.store, store=tiny.store, fallback="error")
    ours = image(pipeline, guidance_scale=guidance)
    assert fallbacks(loaded) == {}
    assert np.abs(ours - eager).max() <= ONE_STEP_OF_A_PIXEL
    loaded.restore()


@pytest.mark.parametrize("seed", [11, 12, 13, 14, 15])
def test_artifact_serves_other_weights_when_they_are_of_the_same_architecture(
    tiny: Tiny, seed: int
) -> None:
    pipeline = random_pipeline(RECIPE, seed=seed)
    loaded = aotbuild.load(pipeline, tiny.store, store=tiny.store, fallback="error")
    for unit in loaded._units:
        module = unit.component.module
        for artifact in unit.dispatcher.artifacts:
            manifest = artifact.manifest
            values = manifest.checks["example_values"]
            call = example_call(manifest.signature, values, {}, device="cpu", seed=seed)
            with torch.no_grad():
                ours = getattr(module, manifest.method)(**call)[0]
                stock = getattr(type(module), manifest.method)
                eager = stock(module, **call)[0]
                reference = _in_float64(module, manifest.method, call)
            error, own = relative_l2([ours], [reference]), relative_l2([eager], [reference])
            assert error <= max(EAGER_FACTOR * own, FLOOR)
    assert fallbacks(loaded) == {}
    loaded.restore()


def _in_float64(module: torch.nn.Module, method: str, call: dict[str, Any]) -> torch.Tensor:
    double = copy.deepcopy(module).double()
    wide = {
        n: torch.utils._pytree.tree_map(
            lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, v
        )
        for n, v in call.items()
    }
    answer: torch.Tensor = getattr(type(double), method)(double, **wide)[0]
    return answer


def test_fine_tune_is_served_when_its_weights_are_loaded_into_the_swapped_pipeline(
    pipeline: Any, loaded: aotbuild.Loaded
) -> None:
    first = image(pipeline)
    other = random_pipeline(RECIPE, seed=7)
    pipeline.unet.load_state_dict(other.unet.state_dict())
    ours = image(pipeline)
    loaded.restore()
    assert np.abs(ours - first).max() > 10 * ONE_STEP_OF_A_PIXEL
    assert np.abs(ours - image(pipeline)).max() <= ONE_STEP_OF_A_PIXEL
    assert fallbacks(loaded) == {}


def test_uncovered_resolution_runs_eagerly_with_one_warning_that_names_the_command(
    pipeline: Any, loaded: aotbuild.Loaded, caplog: pytest.LogCaptureFixture
) -> None:
    ours = image(pipeline, width=64, height=64)
    text = "\n".join(r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "aotbuild build tiny" in text
    assert "64x64" in text
    # Eager runs on convolution weights in the artifact's layout, so its sums are ordered otherwise.
    loaded.restore()
    assert np.abs(ours - image(pipeline, width=64, height=64)).max() <= ONE_STEP_OF_A_PIXEL
