"""What the measurements measure: a recipe's denoiser, its artifact, random weights, one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotbuild.build.request import BuildRequest, Event
from aotbuild.cache.artifact import Entry
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


def build_denoiser(recipe: Recipe, store: Path, on_event: Callable[[Event], None]) -> Entry:
    """Its artifact for this machine's CPU and the recipe's first call variant, built if need be."""
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


def call_of(entry: Entry) -> dict[str, Any]:
    """A call that the artifact serves, with random tensors of one seed on the CPU."""
    from aotbuild.build.examples import example_call

    values = entry.manifest.checks.get("example_values", {})
    return example_call(entry.manifest.signature, values, {}, device="cpu", seed=SEED)
