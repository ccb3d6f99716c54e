"""What the guard adds to a call: everything between the caller and the bare runner, and back."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aotbuild.bench.subject import Subject, make_subject
from aotbuild.build.request import Event
from aotbuild.recipe import Recipe, load_configs, load_recipe

WARM_CALLS = 5

NARROW = {
    "block_out_channels": [32, 64, 64],
    "attention_head_dim": [2, 4, 4],
    "cross_attention_dim": 64,
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 80,
}
"""SDXL's UNet with all of its layers, constants and modules, and little to compute in each."""


class TimedRunner:
    """Stands where an artifact's runner was, and adds up the time spent in it.

    Attributes:
        seconds: of all runs since it was last set to 0.
        idle: answer with the last run's outputs instead of running.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._outputs: Any = None
        self.seconds = 0.0
        self.idle = False

    def run(self, inputs: Any) -> Any:
        """Run, and take the time."""
        begun = time.perf_counter()
        try:
            if not self.idle:
                self._outputs = self._runner.run(inputs)
            return self._outputs
        finally:
            self.seconds += time.perf_counter() - begun


def measure(
    *, store: Path, calls: int, sdxl: bool, on_event: Callable[[Event], None]
) -> dict[str, Any]:
    """The guard's cost over `tiny`'s UNet, and over one with SDXL's constants where asked for.

    Returns:
        Per subject: constants, calls, and medians in microseconds: `guard_us` of the guard beside
        runs, each of which leaves the processor's caches to itself, with its quartiles;
        `guard_alone_us` of the guard in a row, without runs between; `run_us` of the bare run.
    """
    figures = {"tiny": guard_cost(make_subject(load_recipe("tiny"), store, on_event), store, calls)}
    if sdxl:
        with tempfile.TemporaryDirectory(prefix="aotbuild-bench-") as folder:
            recipe = narrow_sdxl(Path(folder))
            figures["sdxl"] = guard_cost(make_subject(recipe, store, on_event), store, calls)
    return figures


def guard_cost(subject: Subject, store: Path, calls: int) -> dict[str, Any]:
    """Time `calls` calls of the swapped method, and in each of them the bare run apart."""
    import torch

    import aotbuild

    pipeline = SimpleNamespace(**{subject.component: subject.module})
    labels = [subject.entry.manifest.component]
    loaded = aotbuild.load(pipeline, store, store=store, components=labels, fallback="error")
    timed = _put_timer(subject)
    with torch.no_grad():
        beside = [_time_call(subject, timed) for _ in range(WARM_CALLS + calls)][WARM_CALLS:]
        timed.idle = True
        alone = [_time_call(subject, timed)[0] for _ in range(WARM_CALLS + 10 * calls)]
    loaded.restore()
    low, middle, high = statistics.quantiles([guard for guard, _ in beside], n=4)
    return {
        "constants": len(subject.entry.manifest.constants),
        "calls": calls,
        "guard_us": round(middle, 1),
        "guard_quartiles_us": [round(low, 1), round(high, 1)],
        "guard_alone_us": round(statistics.median(alone), 1),
        "run_us": round(statistics.median(run for _, run in beside), 1),
    }


def _time_call(subject: Subject, timed: TimedRunner) -> tuple[float, float]:
    """(guard, run) of one call, in microseconds."""
    timed.seconds = 0.0
    begun = time.perf_counter()
    subject.module(**subject.call)
    total = time.perf_counter() - begun
    return (total - timed.seconds) * 1e6, timed.seconds * 1e6


def _put_timer(subject: Subject) -> TimedRunner:
    """A timer in front of the runner of the one artifact that serves the subject's call."""
    dispatcher: Any = subject.module.forward
    key = subject.entry.manifest.key
    artifact = next(a for a in dispatcher.artifacts if a.manifest.key == key)
    artifact._runner = TimedRunner(artifact._runner)
    timed: TimedRunner = artifact._runner
    return timed


def narrow_sdxl(folder: Path) -> Recipe:
    """SDXL's recipe over narrow layers, its configs written to `folder`."""
    recipe = load_recipe("sdxl")
    configs = load_configs(recipe.architecture)
    configs["unet"] |= NARROW
    configs["vae"] = load_configs("tiny")["vae"]
    for name, config in configs.items():
        folder.joinpath(f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    call = replace(recipe.call, resolution="128x128", tensors=load_recipe("tiny").call.tensors)
    return replace(recipe, architecture=f"{folder}/", dtype="fp32", call=call)
