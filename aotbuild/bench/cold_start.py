"""`bench cold-start`: every way to a first step in fresh processes, interleaved; `report` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from aotbuild.bench.process import run_module
from aotbuild.bench.subject import build_denoiser, denoiser, write_checkpoint
from aotbuild.bench.ways import (
    BUNDLE,
    COMPILE,
    EAGER,
    MEGA_CACHE,
    PACKED,
    WARM_FOLDER,
    WAYS,
    Job,
    Run,
)
from aotbuild.build.request import Event
from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.store import Store
from aotbuild.recipe import Recipe, recipe_configs

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one measurement is of.

    Attributes:
        recipe: with what the command line changed.
        ways: of `WAYS`, at least one.
        repeats: processes for each way.
        steps: steady steps in each process.
        store: the store that the artifact is built into.
        work: folder for weights and caches: twice the weights' size, and more.
    """

    recipe: Recipe
    ways: tuple[str, ...]
    repeats: int
    steps: int
    store: Path
    work: Path


def measure(plan: Plan, *, on_event: Callable[[Event], None], say: Say) -> list[Run]:
    """Write weights, build the denoiser's artifacts, and run each way `repeats` times.

    Rounds are interleaved, so that a machine that gets slower slows every way alike. Ways that read
    a cache need a cold compile first; where that isn't asked for it is run, and not counted.

    Raises:
        AotbuildError: the build failed, or a process of a way did.
    """
    checkpoint = plan.work / "checkpoint"
    say(f"writing random weights of {denoiser(plan.recipe)}")
    write_checkpoint(plan.recipe, checkpoint)
    keys = {PACKED: _key(plan, on_event, checkpoint)} if PACKED in plan.ways else {}
    if BUNDLE in plan.ways:
        bundle = build_denoiser(plan.recipe, plan.store, on_event, backend=INDUCTOR_CACHE)
        keys[BUNDLE] = Store(plan.work / "bundle").add(bundle.folder).manifest.key
    job = make_job(plan, checkpoint, _key(plan, on_event))
    runs: list[Run] = []
    if COMPILE not in plan.ways and {WARM_FOLDER, MEGA_CACHE} & set(plan.ways):
        say("filling the caches that the warm ways read (not counted)")
        run_way(replace(job, way=COMPILE), cache_folder(plan, COMPILE, 0))
    for repeat in range(plan.repeats):
        for way in (w for w in WAYS if w in plan.ways):
            say(f"round {repeat + 1} of {plan.repeats}: {way}")
            output = str(plan.work / f"{way}-{repeat}.safetensors")
            mine = replace(job, way=way, output=output, key=keys.get(way, job.key))
            mine = replace(mine, store=str(plan.work / "bundle")) if way == BUNDLE else mine
            runs.append(run_way(mine, cache_folder(plan, way, repeat)))
    return compare(runs, plan)


def _key(plan: Plan, on_event: Callable[[Event], None], pack: Path | None = None) -> str:
    return build_denoiser(plan.recipe, plan.store, on_event, pack).manifest.key


def make_job(plan: Plan, checkpoint: Path, key: str) -> Job:
    """What every process gets."""
    component = denoiser(plan.recipe)
    recipe = plan.recipe.on("cpu").to_json()["components"][component]
    return Job(
        way=EAGER,
        config=recipe_configs(plan.recipe)[component],
        dtype=plan.recipe.torch_dtype,
        checkpoint=str(checkpoint),
        store=str(Store(plan.store).root),
        key=key,
        name=component,
        component=recipe,
        steps=plan.steps,
        mega_cache=str(plan.work / "mega-cache.bin"),
        output=str(plan.work / "output.safetensors"),
    )


def cache_folder(plan: Plan, way: str, repeat: int) -> Path:
    """Inductor's cache for one process: empty, but for the way that reads the first cold one's."""
    if way in (COMPILE, WARM_FOLDER):
        return plan.work / f"cache-{COMPILE}-{0 if way == WARM_FOLDER else repeat}"
    return plan.work / f"cache-{way}-{repeat}"


def run_way(job: Job, cache: Path) -> Run:
    """One process.

    Raises:
        BuildError: it died; with the end of what it printed.
    """
    module = "aotbuild.bench.cold_worker"
    return Run(**run_module(module, job.to_json(), cache=cache, what=job.way))


def compare(runs: Iterable[Run], plan: Plan) -> list[Run]:
    """The runs with each answer's distance from the first eager one, where there is one."""
    from safetensors.torch import load_file

    from aotbuild.build.closeness import relative_l2

    reference = plan.work / f"{EAGER}-0.safetensors"
    if not reference.exists():
        return list(runs)
    expected = list(load_file(reference).values())
    compared, counts = [], dict.fromkeys(WAYS, 0)
    for run in runs:
        answer = load_file(plan.work / f"{run.way}-{counts[run.way]}.safetensors")
        counts[run.way] += 1
        compared.append(replace(run, error=relative_l2(list(answer.values()), expected)))
    return compared
