"""What recipes prepare by name and by rule, built by the program's own steps and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aotbuild
from aotbuild.bench.subject import call_of
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.request import BuildRequest
from aotbuild.build.run import build
from aotbuild.build.verify import relative_l2
from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.recipe import Recipe, TensorRecipe, load_recipe, recipe_configs

UNET = {
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "attention_head_dim": 2,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
}
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "sd15-controlnet": {
        "unet": {**UNET, "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]},
        "controlnet": {**UNET, "conditioning_embedding_out_channels": [8, 8, 16, 16]},
    },
    "qwen-image": {
        "transformer": {
            "num_layers": 2,
            "attention_head_dim": 32,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "axes_dims_rope": [8, 12, 12],
        },
    },
}


def small(name: str, component: str, folder: Path, tensors: Mapping[str, Any]) -> Recipe:
    """The shipped recipe with `component` alone, over small configs."""
    recipe = load_recipe(name)
    for part, config in recipe_configs(recipe).items():
        changed = {**config, **SMALL[name].get(part, {})}
        (folder / f"{part}.json").write_text(json.dumps(changed))
    return replace(
        recipe.override(dtype="fp32", resolution="64x64"),
        architecture=f"{folder}/",
        components={component: replace(recipe.components[component], architecture=None)},
        call=replace(recipe.call, resolution="64x64", tensors={**recipe.call.tensors, **tensors}),
    )


def built(recipe: Recipe, store: Path) -> Entry:
    request = BuildRequest(
        recipe=recipe, gpu="cpu", resolutions=("64x64",), batches=(1,), store=store
    )
    (artifact,) = build(request)
    assert artifact.verified
    return Store(store).find(artifact.key)


def random_module(entry: Entry, seed: int) -> torch.nn.Module:
    config = {"_class_name": entry.manifest.module.class_name, **entry.manifest.module.config}
    module = build_module(config, "float32")
    fill_random(module, seed)
    return module


@pytest.fixture(scope="module")
def controlnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Entry]:
    folder = tmp_path_factory.mktemp("controlnet")
    store = folder / "store"
    return store, built(small("sd15-controlnet", "controlnet", folder, {}), store)


def test_one_controlnet_serves_every_scale(controlnet: tuple[Path, Entry]) -> None:
    store, entry = controlnet
    module, call = random_module(entry, 1), call_of(entry)
    loaded = aotbuild.load(SimpleNamespace(controlnet=module), store, store=store, fallback="error")
    scales: list[Any] = [0.3, 0.5, 1.0, 2, 0.0, torch.tensor(0.7)]
    with torch.no_grad():
        for scale in scales:
            call["conditioning_scale"] = scale
            samples, middle = module(**call)
            expected, expected_middle = type(module).forward(module, **call)
            for ours, eager in zip((*samples, middle), (*expected, expected_middle), strict=True):
                torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
        del call["conditioning_scale"]
        module(**call)
    (metrics,) = loaded.metrics().values()
    assert sum(metrics["hits"].values()) == len(scales) + 1
    assert metrics["fallbacks"] == {}
    loaded.restore()


def test_a_scale_that_isnt_one_number_runs_eagerly_with_the_reason(
    controlnet: tuple[Path, Entry],
) -> None:
    store, entry = controlnet
    module, call = random_module(entry, 1), call_of(entry)
    loaded = aotbuild.load(SimpleNamespace(controlnet=module), store, store=store)
    with torch.no_grad():
        module(**{**call, "conditioning_scale": True})
    assert loaded.metrics()["controlnet"]["fallbacks"] == {"call": 1}
    assert "conditioning_scale is True, not one real number" in loaded.report()
    loaded.restore()


def test_a_real_rotary_embedding_binds_the_stock_tables(tmp_path: Path) -> None:
    embeds = {"shape": ("batch", 12, 32)}
    mask = {"shape": ("batch", 12), "dtype": "int64", "fill": 1.0}
    given = {
        f"{sign}prompt_embeds{kind}": TensorRecipe(**fields)
        for sign in ("", "negative_")
        for kind, fields in {"": embeds, "_mask": mask}.items()
    }
    store = tmp_path / "store"
    entry = built(small("qwen-image", "transformer", tmp_path, given), store)
    manifest = entry.manifest
    assert not [o for o in manifest.checks["operators"] if "complex" in o]
    assert {c.rule for c in manifest.constants} == {"tensor/1", "real/1"}
    (preparation,) = (p.value for p in manifest.parts if p.name == "preparation")
    assert preparation["preparations"] == ["real_rotary"]
    module, call = random_module(entry, 1), call_of(entry)
    with torch.no_grad():
        eager = module(**call)[0]
        loaded = aotbuild.load(
            SimpleNamespace(transformer=module), store, store=store, fallback="error"
        )
        ours = module(**call)[0]
    assert relative_l2([ours], [eager]) < 1e-5
    (metrics,) = loaded.metrics().values()
    assert (sum(metrics["hits"].values()), metrics["fallbacks"]) == (1, {})
    assert metrics["extra_bytes"] == 0
    loaded.restore()
