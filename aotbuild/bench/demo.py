"""The demo: one stock pipeline, eagerly and from artifacts, timed and compared; `picture` draws."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aotbuild.bench.pipeline import PROMPT, pipeline_inputs, random_pipeline
from aotbuild.bench.process import run_module
from aotbuild.build.request import BuildRequest, Built, Event
from aotbuild.recipe import Recipe, VariantRecipe, load_recipe

STEPS = 8
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one way.

    Attributes:
        way: "eager", "torch.compile", "aotbuild".
        ready_s: until the pipeline could be called, beyond what every way needs.
        first_s: the first image.
        next_s: a later one, the median of `REPEATS`.
    """

    way: str
    ready_s: float
    first_s: float
    next_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What the demo showed.

    Attributes:
        eager: the image that the stock pipeline makes.
        artifact: the image that it makes from artifacts.
        timings: of each way.
        metrics: what the loader counted, by unit.
        report: which artifact serves which component, and why.
    """

    eager: Any
    artifact: Any
    timings: tuple[Timing, ...]
    metrics: dict[str, Any]
    report: str


def demo_recipe() -> Recipe:
    """`tiny`, with the one call that the demo makes."""
    recipe = load_recipe("tiny")
    return replace(recipe, call=replace(recipe.call, variants={"guided": VariantRecipe()}))


def build_artifacts(recipe: Recipe, store: Path, on_event: Callable[[Event], None]) -> list[Built]:
    """The demo's artifacts for this machine's CPU, in the store."""
    from aotbuild.build import run

    request = BuildRequest(
        recipe=recipe,
        gpu="cpu",
        resolutions=(recipe.call.resolution,),
        batches=(recipe.call.batch,),
        store=store,
    )
    return run.build(request, on_event)


def run_demo(recipe: Recipe, store: Path) -> Demo:
    """The stock pipeline as it is, then the same one swapped, in this process."""
    import aotbuild

    pipeline = random_pipeline(recipe)
    _warm(pipeline, recipe)
    eager, eager_timing = _images("eager", pipeline, recipe, ready_s=0.0)
    begun = time.perf_counter()
    loaded = aotbuild.load(pipeline, store, store=store, fallback="error")
    ready_s = time.perf_counter() - begun
    artifact, timing = _images("aotbuild", pipeline, recipe, ready_s=ready_s)
    demo = Demo(
        eager=eager,
        artifact=artifact,
        timings=(eager_timing, timing),
        metrics=loaded.metrics(),
        report=loaded.report(),
    )
    loaded.restore()
    return demo


def compile_timing(recipe: Recipe) -> Timing:
    """The same with `torch.compile`, in a process of its own with empty caches.

    Raises:
        BuildError: the process failed; with the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="aotbuild-demo-") as cache:
        document, module = recipe.to_json(), "aotbuild.bench.demo"
        return Timing(**run_module(module, document, cache=Path(cache), what="torch.compile"))


def compiled(recipe: Recipe) -> Timing:
    """`torch.compile` on the recipe's units of the stock pipeline."""
    import torch

    pipeline = random_pipeline(recipe)
    _warm(pipeline, recipe)
    pipeline.unet.compile()
    pipeline.vae.decode = torch.compile(pipeline.vae.decode)
    return _images("torch.compile", pipeline, recipe, ready_s=0.0)[1]


def _warm(pipeline: Any, recipe: Recipe) -> None:
    """One eager image, so that thread pools and lazy imports are nobody's first image."""
    pipeline(**pipeline_inputs(recipe, prompt=PROMPT, steps=1))


def _images(way: str, pipeline: Any, recipe: Recipe, *, ready_s: float) -> tuple[Any, Timing]:
    """The first image of a prompt, and how long it and later ones took."""
    seconds, image = [], None
    for _ in range(1 + REPEATS):
        inputs = pipeline_inputs(recipe, prompt=PROMPT, steps=STEPS)
        begun = time.perf_counter()
        image = pipeline(**inputs).images[0]
        seconds.append(time.perf_counter() - begun)
    first, *later = seconds
    return image, Timing(way=way, ready_s=ready_s, first_s=first, next_s=statistics.median(later))


if __name__ == "__main__":
    from dataclasses import asdict

    timing = compiled(Recipe.from_json(json.load(sys.stdin)))
    sys.stdout.write(json.dumps(asdict(timing)) + "\n")
