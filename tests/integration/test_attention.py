"""Attention backends by name: what is built, and that it computes what eager does."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import checkpointed_pipeline, picture, small_recipe
from tiny import fallbacks

import aotbuild
from aotbuild.build.request import BuildRequest
from aotbuild.build.run import build
from aotbuild.build.verify import relative_l2
from aotbuild.cache.store import Store


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "attention", "spelled"),
    [
        ("flux1-schnell", "math", {"math": 2}),
        ("flux1-schnell", "native", None),
        ("sd3-medium", "_native_math", {"math": 2}),
        ("sd15", "math", {}),
    ],
)
def test_pipeline_equals_eager_when_its_denoiser_has_another_attention(
    tmp_path: Path, name: str, attention: str, spelled: dict[str, int] | None
) -> None:
    recipe = small_recipe(name, tmp_path / name).override(attention=attention)
    denoiser = next(n for n, c in recipe.components.items() if c.methods == ("forward",))
    request = BuildRequest(
        recipe=recipe,
        gpu="cpu",
        resolutions=(recipe.call.resolution,),
        batches=(1,),
        components=(denoiser,),
        store=tmp_path / "store",
    )
    (built,) = build(request)
    assert built.verified
    manifest = Store(tmp_path / "store").find(built.key).manifest
    assert manifest.checks.get("attention") == spelled
    recipe = recipe.vary(recipe.call.default_variants[0])
    pipeline = checkpointed_pipeline(recipe, tmp_path / "weights")
    eager = picture(pipeline, recipe)
    loaded = aotbuild.load(pipeline, tmp_path / "store", store=tmp_path / "store")
    assert relative_l2([picture(pipeline, recipe)], [eager]) <= 1e-4
    assert fallbacks(loaded) == {}
