"""A pipeline made ready as a rung has it: its components prepared, compiled, or swapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aotbuild.bench.ladder.rungs import (
    ACCELERATE,
    REGIONAL,
    Rung,
    component_for,
    denoisers,
)
from aotbuild.build.prepare import prepare
from aotbuild.build.quantize import INDUCTOR
from aotbuild.errors import RecipeError
from aotbuild.loaders.jit import keep_extents_apart
from aotbuild.recipe import Recipe


class UnclimbableError(Exception):
    """The pipeline can't be as the rung has it; its text is the reason."""


def prepare_components(pipeline: Any, recipe: Recipe, rung: Rung) -> None:
    """Attention, layout, fusion and quantization of every component that the recipe names.

    Raises:
        UnclimbableError: a component can't be prepared so.
    """
    for name, component in recipe.components.items():
        module: nn.Module = getattr(pipeline, name)
        module.requires_grad_(False)
        try:
            prepare(module, component_for(component, rung), for_export=False)
        except RecipeError as e:
            raise UnclimbableError(str(e)) from e
        kinds = {type(p).__name__ for p in getattr(module, "attn_processors", {}).values()}
        if rung.attention == "math" and kinds - {"AttnProcessor"}:
            raise UnclimbableError(
                f"{type(module).__name__} has no plain attention, its processors are "
                f"{', '.join(sorted(kinds))}"
            )


def compile_components(pipeline: Any, recipe: Recipe, rung: Rung) -> None:
    """torch.compile on what the recipe compiles: denoisers, and the VAE's methods."""
    for name, component in recipe.components.items():
        module: nn.Module = getattr(pipeline, name)
        options: dict[str, Any] = {"fullgraph": True}
        if rung.dynamic:
            keep_extents_apart()
            options["dynamic"] = True
        if rung.mode is not None:
            options["mode"] = rung.mode
        elif found := _inductor(dict(component.inductor), rung):
            options["options"] = found
        if name not in denoisers(recipe):
            for method in component.methods:
                vars(module)[method] = torch.compile(getattr(module, method), **options)
        elif rung.way == REGIONAL:
            module.compile_repeated_blocks(**options)  # type: ignore[operator]
        elif rung.way == ACCELERATE:
            from accelerate.utils import compile_regions

            setattr(pipeline, name, compile_regions(module, **options))
        else:
            module.compile(**options)


def _inductor(options: dict[str, Any], rung: Rung) -> dict[str, Any]:
    """The recipe's options, with those for int8 that this torch has."""
    if rung.quantization == "none":
        return options
    known = torch._inductor.list_options()
    return {**options, **{name: value for name, value in INDUCTOR.items() if name in known}}


def load_artifacts(pipeline: Any, recipe: Recipe, store: Path) -> Callable[[], dict[str, Any]]:
    """`aotbuild.load`; what it returns tells how many calls the artifacts served, and how many not.

    Raises:
        NoArtifactError: a component that the recipe compiles got none.
    """
    import aotbuild

    loaded = aotbuild.load(
        pipeline, store, store=store, components=list(recipe.components), fallback="error"
    )

    def calls() -> dict[str, Any]:
        counted = loaded.metrics().values()
        return {
            "hits": sum(sum(c["hits"].values()) for c in counted),
            "fallbacks": sum(sum(c["fallbacks"].values()) for c in counted),
        }

    return calls
