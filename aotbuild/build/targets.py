"""`--gpu` as a target: what an artifact will run on, known before anything is compiled."""

from __future__ import annotations

import platform

import torch

from aotbuild import probe
from aotbuild.errors import TargetError
from aotbuild.gpus import check_gpu, find_gpu
from aotbuild.recipe import Recipe
from aotbuild.target import CPU_LEVELS, Target


def target_for(gpu: str, recipe: Recipe) -> Target:
    """The target that `gpu` names, with this torch's versions.

    Args:
        gpu: "cpu" (this machine's level), a level such as "x86-64-v3", "auto" (the GPU that is
            here), a name of the GPU table, or "sm_XY".
        recipe: its precision must be one that the target has.

    Raises:
        TargetError: unknown, not here, or unable to do what the recipe asks.
    """
    if gpu == "cpu" or gpu in CPU_LEVELS:
        return _common("cpu", probe.cpu_level() if gpu == "cpu" else gpu)
    if gpu == "auto":
        machine = probe.this_machine()
        if machine.device != "cuda":
            raise TargetError(
                f"--gpu auto: torch {torch.__version__} sees no NVIDIA GPU here. Name one "
                "(--gpu a100), or type --gpu cpu."
            )
        gpu = machine.arch
    found = find_gpu(gpu)
    check_gpu(found, recipe.dtype, torch.version.cuda, probe.version_of("triton"))
    return _common("cuda", found.arch)


def runs_here(target: Target) -> bool:
    """Whether this machine can run what is built for `target`, so that it can be verified."""
    from aotbuild.target import Accepted, judge

    machine = probe.this_machine(target.device)
    # A build of torch that isn't a release is accepted by a record, which is what comes of it.
    return isinstance(judge(target, machine, verified_torch={machine.torch}), Accepted)


def _common(device: str, arch: str) -> Target:
    return Target(
        device=device,
        arch=arch,
        system=platform.system().lower(),
        processor=platform.machine(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda if device == "cuda" else None,
        triton=probe.version_of("triton") if device == "cuda" else None,
    )
