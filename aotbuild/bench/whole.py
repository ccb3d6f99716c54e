"""`bench cold-start --whole`: process start to first image, each way in processes of its own."""

from __future__ import annotations

import compileall
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from aotbuild.bench.cold_start import Plan, Say
from aotbuild.bench.process import run_code
from aotbuild.bench.ways import EAGER
from aotbuild.bench.whole_ways import NO_GC, WHOLE_WAYS, Whole, WholeJob
from aotbuild.build.request import BuildRequest, Event
from aotbuild.recipe import Recipe

SEED = 0


def measure(plan: Plan, *, on_event: Callable[[Event], None], say: Say) -> list[Whole]:
    """Write a checkpoint, build its artifacts, and start each way `repeats` times.

    Rounds are interleaved, so that a machine that gets slower slows every way alike.

    Raises:
        AotbuildError: the build failed, or a process did.
    """
    recipe = plan.recipe
    _compile_bytecode()
    _build(plan, on_event)
    say(f"writing a checkpoint of {recipe.name} with random weights")
    job = write_job(recipe, plan)
    runs = []
    for repeat in range(plan.repeats):
        for way in (w for w in WHOLE_WAYS if w in plan.ways):
            say(f"round {repeat + 1} of {plan.repeats}: {way}")
            output = plan.work / f"{way}-{repeat}.png"
            runs.append(run_way(replace(job, way=way, output=str(output)), plan.work / output.stem))
    return list(compare(runs, plan.work))


def _compile_bytecode() -> None:
    """Have the source's bytecode beside it, as pip leaves an installed package."""
    compileall.compile_dir(Path(__file__).resolve().parents[1], quiet=2)


def _build(plan: Plan, on_event: Callable[[Event], None]) -> None:
    """The artifacts of the recipe's first call, the one that is measured."""
    from aotbuild.build import run

    call = plan.recipe.call
    request = BuildRequest(
        recipe=plan.recipe,
        gpu="cpu",
        resolutions=(call.resolution,),
        batches=(call.batch,),
        variants=tuple(call.variants)[:1],
        store=plan.store.expanduser(),
    )
    run.build(request, on_event)


def write_job(recipe: Recipe, plan: Plan) -> WholeJob:
    """The checkpoint and the call's tensors as files, and what every process gets."""
    import torch
    from safetensors.torch import save_file

    from aotbuild.bench.pipeline import PROMPT, pipeline_inputs, random_pipeline

    pipeline = random_pipeline(recipe)
    pipeline.save_pretrained(plan.work / "checkpoint")
    written = getattr(pipeline, "text_encoder", None) is not None
    first = next(iter(recipe.call.variants), None)
    prompt = PROMPT if written else None
    inputs = pipeline_inputs(recipe, seed=SEED, variant=first, steps=1, prompt=prompt)
    del inputs["generator"], pipeline
    tensors = {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor)}
    save_file(tensors, plan.work / "call.safetensors")
    components = recipe.on("cpu").to_json()["components"]
    call: dict[str, Any] = {n: v for n, v in inputs.items() if n not in tensors}
    return WholeJob(
        way=EAGER,
        started=0.0,
        pipeline=recipe.pipeline,
        checkpoint=str(plan.work / "checkpoint"),
        dtype=recipe.torch_dtype,
        store=str(plan.store.expanduser().absolute()),
        methods={n: list(c.methods) for n, c in recipe.components.items()},
        options={n: components[n]["inductor"] for n in recipe.components},
        call=call,
        tensors=str(plan.work / "call.safetensors"),
        seed=SEED,
        images=plan.steps,
        output="",
    )


def run_way(job: WholeJob, cache: Path) -> Whole:
    """One process, its clock started here.

    Raises:
        BuildError: it died; with the end of what it printed.
    """
    from aotbuild.bench.whole_worker import START

    started = replace(job, started=time.perf_counter())
    options = ["no-gc"] if job.way == NO_GC else []
    return Whole(**run_code(START, options, started.to_json(), cache=cache, what=job.way))


def compare(runs: list[Whole], work: Path) -> Iterator[Whole]:
    """The runs with each image's distance from the first eager one, where there is one."""
    from PIL import Image

    from aotbuild.bench.picture import difference

    counts = dict.fromkeys(WHOLE_WAYS, 0)
    reference = work / f"{EAGER}-0.png"
    for run in runs:
        path = work / f"{run.way}-{counts[run.way]}.png"
        counts[run.way] += 1
        if not reference.exists():
            yield run
            continue
        with Image.open(path) as image, Image.open(reference) as expected:
            yield replace(run, difference=difference(image, expected).largest)
