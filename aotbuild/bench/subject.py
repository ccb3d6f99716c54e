"""What the measurements measure: a recipe's denoiser, its artifact, random weights, one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotbuild.build.request import BuildRequest, Event
from aotbuild.cache.artifact import Entry
from aotbuild.cache.backend import AOT
from aotbuild.cache.store import Store
from aotbuild.recipe import Recipe, recipe_configs

if TYPE_CHECKING:
    from torch import nn

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module that an artifact fits, and a call that it serves."""

    entry: Entry
    component: str
    module: nn.Module
    call: dict[str, Any]


def denoiser(recipe: Recipe) -> str:
    """The component that is called by `forward`: the one that a step is a call of."""
    return next(n for n, c in recipe.components.items() if c.methods == ("forward",))


def build_denoiser(
    recipe: Recipe,
    store: Path,
    on_event: Callable[[Event], None],
    pack: Path | None = None,
    backend: str = AOT,
) -> Entry:
    """Its artifact for this machine's CPU and the recipe's first call variant, built if need be.

    With `pack`, a checkpoint's folder, the artifact holds that checkpoint's weights.
    """
    from aotbuild.build import run

    component = denoiser(recipe)
    variants = dict(list(recipe.call.variants.items())[:1])
    request = BuildRequest(
        recipe=replace(
            recipe,
            components={component: recipe.components[component]},
            call=replace(recipe.call, variants=variants),
        ),
        gpu="cpu",
        resolutions=(recipe.call.resolution,),
        batches=(recipe.call.batch,),
        store=store,
        checkpoint=None if pack is None else str(pack),
        pack_weights=pack is not None,
        backend=backend,
    )
    return Store(store).find(run.build(request, on_event)[0].key)


def make_subject(recipe: Recipe, store: Path, on_event: Callable[[Event], None]) -> Subject:
    """The denoiser with random weights, and a call of its artifact."""
    from aotbuild.build.modules import build_module, fill_random

    entry = build_denoiser(recipe, store, on_event)
    component = denoiser(recipe)
    module = build_module(recipe_configs(recipe)[component], recipe.torch_dtype)
    fill_random(module, SEED)
    return Subject(entry=entry, component=component, module=module, call=call_of(entry))


def write_checkpoint(recipe: Recipe, folder: Path) -> None:
    """The recipe's configs and random weights of its denoiser, as diffusers lays them out."""
    from safetensors.torch import save_model

    from aotbuild.build.modules import build_module, fill_random

    component, configs = denoiser(recipe), recipe_configs(recipe)
    for name, config in configs.items():
        file = folder / name / ("scheduler_config.json" if name == "scheduler" else "config.json")
        if name == "model_index":
            file = folder / "model_index.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(config), encoding="utf-8")
    module = build_module(configs[component], recipe.torch_dtype)
    fill_random(module, SEED)
    save_model(module, str(weights_path(folder, component)))


def weights_path(folder: Path | str, component: str) -> Path:
    """Where `write_checkpoint` puts the weights."""
    return Path(folder) / component / "diffusion_pytorch_model.safetensors"


def call_of(entry: Entry) -> dict[str, Any]:
    """A call that the artifact serves, with random tensors of one seed on the CPU."""
    from aotbuild.build.examples import example_call

    values = entry.manifest.checks.get("example_values", {})
    return example_call(entry.manifest.signature, values, {}, device="cpu", seed=SEED)
