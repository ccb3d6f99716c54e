"""A VAE that works on tiles: each kind of tile is an artifact, and the whole is stock Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny import RECIPE, fallbacks, hits, image

import aotbuild
from aotbuild.bench.pipeline import random_pipeline
from aotbuild.build.request import BuildRequest
from aotbuild.build.run import build
from aotbuild.recipe import Recipe

SIZE = "192x96"
"""Wider than the 128 pixels of one tile: two of them, of two widths."""


def tiled() -> Recipe:
    vae = replace(RECIPE.components["vae"], tiling=True, blocks=("Decoder",), cpu={})
    recipe = RECIPE.override(resolution=SIZE)
    return replace(recipe, components={**recipe.components, "vae": vae})


@pytest.mark.slow
def test_tiled_decoder_equals_eager_and_every_tile_hits_when_its_tiles_were_built(
    tmp_path: Path,
) -> None:
    recipe = tiled()
    request = BuildRequest(
        recipe=recipe,
        gpu="cpu",
        resolutions=(SIZE,),
        batches=(1,),
        variants=("unguided",),
        components=("vae.Decoder",),
        scope="regional",
        store=tmp_path,
    )
    built = build(request)
    assert {b.signature.inputs[0].shape[2:] for b in built} == {(24, 32), (24, 24)}
    assert all(b.verified for b in built)
    pipeline = random_pipeline(recipe)
    changes = {"width": 192, "height": 96, "guidance_scale": 1.0}
    eager = image(pipeline, **changes)
    loaded = aotbuild.load(pipeline, tmp_path, store=tmp_path)
    ours = image(pipeline, **changes)
    assert abs(ours - eager).max() <= 1e-4
    assert (hits(loaded), fallbacks(loaded)) == (2, {})
    pipeline.vae.disable_tiling()
    image(pipeline, **changes)
    assert hits(loaded) == 2
