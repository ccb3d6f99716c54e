"""What a request will make: an artifact for each call that its rehearsals record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aotbuild.build.blueprint import draw, rehearsed
from aotbuild.build.bundle_request import check_bundles
from aotbuild.build.checkpoint import naming_its_class, resolve_checkpoint
from aotbuild.build.host import find_toolchain
from aotbuild.build.job import Blueprint, Job
from aotbuild.build.pack import source_of
from aotbuild.build.rehearse import check_called
from aotbuild.build.request import BuildRequest, Event, Planned, check_named, chosen
from aotbuild.build.targets import runs_here, target_for
from aotbuild.build.tuning import read_table, table_path
from aotbuild.cache.backend import AOT
from aotbuild.cache.store import Store
from aotbuild.errors import TargetError
from aotbuild.recipe import Recipe, recipe_configs
from aotbuild.target import Target


def plan(
    request: BuildRequest, on_event: Callable[[Event], None] = lambda _: None
) -> list[Planned]:
    """The artifacts that `request` asks for, in order, each once.

    Raises:
        UsageError: a recipe, target or resolution that can't be.
        ToolchainError: no C++ compiler.
        BuildError: the pipeline refused the rehearsal.
    """
    check_named(request.recipe, request.components)
    target = target_for(request.gpu, request.recipe)
    _check_supported(request, target)
    recipe = resolve_checkpoint(request.recipe.on(target.device), request.checkpoint)
    configs = recipe_configs(recipe)
    recipe = recipe.without_folders()
    toolchain, store = find_toolchain(), Store(request.store)
    tuning = _tuning(request, target)
    weights = _weights(request)
    found: dict[str, Planned] = {}
    called: set[str] = set()
    for job_recipe, variant, dynamic in _calls(recipe, request):
        started = time.monotonic()
        on_event(
            Event(stage="rehearse", component="", message=_label(job_recipe, variant, dynamic))
        )
        with naming_its_class(request.checkpoint, recipe, configs):
            rehearsals = rehearsed(job_recipe, configs, variant, dynamic, request.scope)
        seconds = time.monotonic() - started
        on_event(Event(stage="rehearse", component="", seconds=seconds))
        called |= {*rehearsals[0].units, *rehearsals[0].others}
        for unit, calls in rehearsals[0].units.items():
            for index in range(len(calls)):
                job = Job(
                    recipe=job_recipe,
                    configs=configs,
                    variant=variant,
                    unit=unit,
                    index=index,
                    dynamic=dynamic,
                    scope=request.scope,
                    gpu=target.arch,
                    tune=request.tune,
                    tuning=None if request.tune else tuning,
                    weights=weights.get(unit.partition(".")[0]),
                    backend=request.backend,
                )
                print_ = draw(job, rehearsals, target, toolchain)
                found.setdefault(print_.key, _planned(print_, store, seconds))
    if {*_variants(recipe, request)} >= {*recipe.call.variants}:
        check_called(recipe, called)
    return chosen(found.values(), request.components)


def _tuning(request: BuildRequest, target: Target) -> dict[str, dict[str, int]] | None:
    """The choices of the recipe's tuning table for the target, where there is one."""
    if target.device != "cuda" or request.backend != AOT:
        return None
    name = request.recipe.name
    table = read_table(table_path(request.recipe_path, request.store, name, target.arch))
    return None if table is None else table.choices


def _weights(request: BuildRequest) -> dict[str, dict[str, Any]]:
    """Component -> whose weights to pack, where the request asks for it."""
    if not request.pack_weights:
        return {}
    names = request.recipe.components
    return {name: source_of(request.checkpoint, name).to_json() for name in names}


def _check_supported(request: BuildRequest, target: Target) -> None:
    check_bundles(request, target)
    if request.tune and not (target.device == "cuda" and runs_here(target)):
        raise TargetError(
            f"--tune measures on the GPU that is built for, and torch sees no {target.arch} here. "
            "Leave it out: the build needs no GPU without it."
        )


def _calls(
    recipe: Recipe, request: BuildRequest
) -> Iterator[tuple[Recipe, str, tuple[str, str] | None]]:
    sizes = (request.dynamic[0],) if request.dynamic else request.resolutions
    for resolution in sizes:
        for batch in request.batches:
            resolved = recipe.override(resolution=resolution, batch=batch)
            for variant in _variants(recipe, request):
                yield resolved, variant, request.dynamic


def _variants(recipe: Recipe, request: BuildRequest) -> tuple[str, ...]:
    return request.variants or recipe.call.default_variants or ("default",)


def _label(recipe: Recipe, variant: str, dynamic: tuple[str, str] | None) -> str:
    size = ":".join(dynamic) if dynamic else recipe.call.resolution
    return f"{recipe.pipeline} at {size}, batch {recipe.call.batch}, {variant}"


def _planned(blueprint: Blueprint, store: Store, rehearse_s: float) -> Planned:
    job = blueprint.job
    return Planned(
        component=job.unit,
        key=blueprint.key,
        path=Path(store.root) / blueprint.folder,
        signature=blueprint.signature,
        cached=store.get(blueprint.key) is not None,
        resolution=":".join(job.dynamic) if job.dynamic else job.recipe.call.resolution,
        batch=job.recipe.call.batch,
        variant=job.variant,
        blocks=blueprint.recorded.block.paths if blueprint.recorded.block else (),
        job=job.to_json(),
        rehearse_s=rehearse_s,
        layers=tuple(layer.to_json() for layer in blueprint.layers),
    )
