"""One artifact's blueprint: its call rehearsed, its preparation and options, its key."""

from __future__ import annotations

from typing import Any

from aotbuild import probe
from aotbuild.build.backends import set_backend
from aotbuild.build.bundle_request import for_bundle, settings_for
from aotbuild.build.calls import RecordedCall
from aotbuild.build.compile import options_for
from aotbuild.build.host import Toolchain, find_toolchain
from aotbuild.build.job import Blueprint, Job
from aotbuild.build.layers import inductor_options, judge_layers
from aotbuild.build.moving import range_over, settings_of
from aotbuild.build.prepare import describe
from aotbuild.build.ranges import Range
from aotbuild.build.rehearse import Rehearsal, rehearse
from aotbuild.build.signatures import planned_signature
from aotbuild.build.targets import target_for
from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.files import weights_part
from aotbuild.cache.key import RULES_REVISION, Part, make_parts
from aotbuild.cache.requirements import REQUIRES
from aotbuild.cache.signature import Signature
from aotbuild.errors import BuildError
from aotbuild.recipe import Recipe
from aotbuild.recipe.backends import BACKENDS, requirements
from aotbuild.target import Target


def blueprint(job: Job) -> Blueprint:
    """Work out one job again, in the process that will carry it out."""
    target = target_for(job.gpu, job.recipe)
    rehearsals = rehearsed(job.recipe, job.configs, job.variant, job.dynamic, job.scope)
    return draw(job, rehearsals, target, find_toolchain())


def rehearsed(
    recipe: Recipe,
    configs: dict[str, dict[str, Any]],
    variant: str,
    dynamic: tuple[str, str] | None,
    scope: str,
) -> tuple[Rehearsal, ...]:
    """One rehearsal, or the two that tell the moving dimensions of a range."""
    return tuple(
        rehearse(
            recipe.at_lengths(setting.lengths),
            configs,
            resolution=setting.resolution,
            batch=recipe.call.batch,
            variant=variant,
            scope=scope,
        )
        for setting in settings_of(recipe.vary(variant).call, dynamic)
    )


def draw(
    job: Job, rehearsals: tuple[Rehearsal, ...], target: Target, toolchain: Toolchain
) -> Blueprint:
    """The blueprint of `job`, whose rehearsals are these.

    Raises:
        RecipeError: the module can't be prepared as its recipe says.
        BuildError: it can't serve the range that is asked for.
    """
    recorded = rehearsals[0].units[job.unit][job.index]
    bundle, asked = job.backend == INDUCTOR_CACHE, job.recipe.components[recorded.component]
    component, layers = judge_layers(recorded, for_bundle(asked) if bundle else asked)
    if BACKENDS[component.attention].dispatched:
        set_backend(recorded.module(), component.attention)
    dynamic = _range(job, rehearsals)
    signature = planned_signature(recorded, target.device, dynamic)
    preparation = {
        "dtype": job.recipe.dtype,
        **describe(component),
        "casts": recorded.changed,
    }
    if bundle:
        options = settings_for(component, dynamic=dynamic is not None).to_part()
    else:
        inductor = inductor_options(component)
        options = options_for(target.arch, target.device, inductor, tune=job.tune)
    return Blueprint(
        job=job,
        recorded=recorded,
        dynamic=dynamic,
        signature=signature,
        component=component,
        layers=layers,
        preparation=preparation,
        options=options,
        target=target,
        toolchain=toolchain,
        parts=_parts(job, recorded, signature, preparation, options, target, toolchain),
    )


def _range(job: Job, rehearsals: tuple[Rehearsal, ...]) -> Range | None:
    """What moves in the job's call; None where nothing does."""
    found = [r.units.get(job.unit, ()) for r in rehearsals]
    places = [[c.block and c.block.paths for c in calls] for calls in found]
    if any(p != places[0] for p in places):
        raise BuildError(
            f"{job.unit} can't be dynamic: its blocks are called alike at one size and otherwise "
            "at another. Build each size for itself."
        )
    recorded = [calls[job.index] for calls in found]
    return range_over(job.recipe.vary(job.variant).call, job.dynamic, recorded)


def _parts(
    job: Job,
    recorded: RecordedCall,
    signature: Signature,
    preparation: dict[str, Any],
    options: dict[str, Any],
    target: Target,
    toolchain: Toolchain,
) -> tuple[Part, ...]:
    installed = probe.versions()
    versions: dict[str, Any] = {"torch": target.torch, "diffusers": installed["diffusers"]}
    if target.device == "cuda":
        versions |= {"cuda": target.cuda, "triton": target.triton}
    if preparation["quantization"] != "none":
        versions["torchao"] = installed["torchao"]
    if needed := requirements(preparation["attention"]):
        versions[REQUIRES] = needed
    return make_parts(
        {
            "rules": RULES_REVISION,
            "architecture": {
                "class": recorded.identity.class_name,
                "method": recorded.method,
                "config": recorded.identity.config,
                **_block_part(recorded),
            },
            "source": recorded.identity.source_sha256,
            "signature": signature.calls(),
            "preparation": preparation,
            "options": options,
            "tuning": "measured" if job.tune else job.tuning,
            "target": {
                "device": target.device,
                "arch": target.arch,
                "system": target.system,
                "processor": target.processor,
            },
            "versions": versions,
            "toolchain": toolchain.to_json(),
            "weights": weights_part(job.weights["digest"] if job.weights else None),
        }
    )


def _block_part(recorded: RecordedCall) -> dict[str, Any]:
    """What tells a block's code from another's, beside its class and weights."""
    if recorded.block is None:
        return {}
    return {"component": recorded.component, "state": recorded.state}
