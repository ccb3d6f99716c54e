"""Small versions of the shipped recipes: their own classes and calls, few channels and layers."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import torch

from aotbuild.bench.pipeline import pipeline_inputs, random_pipeline
from aotbuild.build.request import BuildRequest, Built
from aotbuild.build.run import build
from aotbuild.recipe import Recipe, load_recipe, recipe_configs

_TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("small.toml").read_text(encoding="utf-8")
)
ROWS: dict[str, dict[str, Any]] = _TABLE["rows"]
_SCHEDULERS: dict[str, dict[str, Any]] = _TABLE["schedulers"]


def small_recipe(name: str, folder: Path) -> Recipe:
    """The shipped recipe over small configs, which are written to `folder`; unquantized fp32."""
    row, recipe = ROWS[name], load_recipe(name)
    folder.mkdir(parents=True, exist_ok=True)
    for component, config in recipe_configs(recipe).items():
        own = (
            _TABLE["configs"][row["components"][component]]
            if component in row["components"]
            else {}
        )
        (folder / f"{component}.json").write_text(json.dumps({**config, **own}))
    recipe = recipe.override(dtype="fp32", quantization="none", resolution=row["resolution"])
    arguments = {**recipe.call.arguments, **row.get("arguments", {})}
    return replace(
        recipe,
        architecture=str(folder),
        components={n: replace(c, architecture=None) for n, c in recipe.components.items()},
        call=replace(recipe.call, arguments=arguments),
    )


def build_small(
    recipe: Recipe, store: Path, variants: tuple[str, ...] = (), scope: str = "full"
) -> list[Built]:
    """What the recipe asks for, for this machine's CPU; unverified, as tests compare."""
    request = BuildRequest(
        recipe=recipe,
        gpu="cpu",
        resolutions=(recipe.call.resolution,),
        batches=(recipe.call.batch,),
        variants=variants,
        store=store,
        scope=scope,
        verify=False,
    )
    return build(request)


def checkpointed_pipeline(recipe: Recipe, folder: Path) -> Any:
    """The recipe's stock pipeline, its components as `from_pretrained` loads them from `folder`."""
    pipeline = random_pipeline(recipe)
    for name in recipe.components:
        if not recipe.components[name].ip_adapters:
            module = getattr(pipeline, name)
            module.save_pretrained(folder / name)
            loaded = type(module).from_pretrained(folder / name, torch_dtype=torch.float32)
            pipeline.register_modules(**{name: loaded.eval()})
    return pipeline


def swap_scheduler(pipeline: Any, name: str) -> None:
    """Give `pipeline` a scheduler of the table, or of that class, with its own one's config."""
    said = {"class": name, **_SCHEDULERS.get(name, {})}
    cls = getattr(diffusers, said.pop("class"))
    pipeline.scheduler = cls.from_config(pipeline.scheduler.config, **said)


def picture(pipeline: Any, recipe: Recipe, steps: int = 2) -> torch.Tensor:
    """The first images or frames that the pipeline makes of seeded inputs."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some schedulers draw without the pipeline's generator
        answer = pipeline(**pipeline_inputs(recipe, steps=steps), output_type="pt")[0]
    return torch.as_tensor(answer)
