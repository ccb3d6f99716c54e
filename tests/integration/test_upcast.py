"""SDXL in float16: its pipeline casts the VAE to float32 and back around every image."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import RECIPE, image, run_aotbuild

import aotbuild
from aotbuild.bench.pipeline import random_pipeline

HALF_A_PERCENT = 0.005
"""Of the full range, on average over the pixels: float16 and another order of sums in two steps."""


@pytest.fixture(scope="module")
def half_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guided call of `tiny` in float16."""
    folder = tmp_path_factory.mktemp("half")
    text = (resources.files("aotbuild.recipes") / "tiny.toml").read_text()
    recipe = folder / "half.toml"
    recipe.write_text(text.replace("unguided = { guidance_scale = 1.0 }", ""))
    done = run_aotbuild(
        *("build", str(recipe), "--gpu", "cpu", "--dtype", "fp16"),
        *("--store", str(folder / "store"), "--json"),
    )
    assert done.returncode == 0, done.stderr
    return folder / "store"


def test_five_images_are_right_when_the_pipeline_upcasts_its_vae(half_store: Path) -> None:
    pipeline: Any = random_pipeline(RECIPE, dtype="float16")
    assert pipeline.vae.config.force_upcast
    eager = [image(pipeline, steps=2, seed=s) for s in range(5)]
    assert pipeline.vae.dtype is torch.float16
    loaded = aotbuild.load(pipeline, half_store, store=half_store)
    ours = [image(pipeline, steps=2, seed=s) for s in range(5)]
    for one, other in zip(ours, eager, strict=True):
        assert np.isfinite(one).all()
        assert np.abs(one - other).mean() <= HALF_A_PERCENT
    metrics = loaded.metrics()
    assert sum(metrics["unet"]["hits"].values()) == 10
    # The VAE's artifact reads float32 weights, which are there only while the pipeline decodes.
    assert sum(metrics["vae.decode"]["hits"].values()) == 5
    assert metrics["vae.decode"]["fallbacks"] == {}
    assert "5 calls" in loaded.report()
    loaded.restore()
