"""One process of `bench cold-start`: goes one way to a first step, and times each part.

    python -m aotbuild.bench.cold_worker < job.json      prints a `Run` as the last line

Which ways are run, how often and in what order is `cold_start`'s.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import json  # noqa: E402 (the clock starts before any import)
import statistics  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from aotbuild.bench.ways import (  # noqa: E402
    AOTBUILD,
    BUNDLE,
    COMPILE,
    PACKED,
    Job,
    Run,
)

if TYPE_CHECKING:
    from torch import nn


def run(job: Job) -> Run:
    """Go the job's way; see `Run` for what is measured."""
    import_libraries(job.way)
    imported = time.perf_counter()
    module = None if job.way == PACKED else mapped_module(job)
    weighted = time.perf_counter()
    import torch

    from aotbuild.bench.subject import call_of
    from aotbuild.bench.way_steps import WAY_STEPS, compiled, packed
    from aotbuild.cache.store import Store
    from aotbuild.probe import peak_memory_bytes

    entry = Store(Path(job.store)).find(job.key)
    call = call_of(entry)
    with torch.no_grad():
        if module is None:
            step, parts = packed(job, entry, call)
        else:
            step, parts = WAY_STEPS.get(job.way, compiled)(job, module, entry, call)
        begun = time.perf_counter()
        answer = step()
        first_s = time.perf_counter() - begun
        steady = [timed(step) for _ in range(job.steps)]
    peak_bytes = peak_memory_bytes()
    keep_answer(job, answer)
    return Run(
        way=job.way,
        import_s=imported - STARTED,
        weights_s=weighted - imported + parts.weights_s,
        load_s=parts.load_s,
        bind_s=parts.bind_s,
        first_s=first_s,
        steady_s=statistics.median(steady),
        peak_bytes=peak_bytes,
        derived_bytes=parts.derived_bytes,
        freed_bytes=parts.freed_bytes,
    )


def import_libraries(way: str) -> None:
    """What the way would import in a service: the eager module's class where there is one."""
    import safetensors.torch  # noqa: F401
    import torch  # noqa: F401

    if way in (AOTBUILD, BUNDLE, PACKED):
        import aotbuild.loaders.load  # noqa: F401
    if way != PACKED:
        from diffusers import AutoencoderKL, UNet2DConditionModel  # noqa: F401


def mapped_module(job: Job) -> nn.Module:
    """The eager module, its parameters views of the mapped file."""
    from safetensors.torch import load_file

    from aotbuild.bench.subject import weights_path
    from aotbuild.build.modules import build_module

    module = build_module(job.config, job.dtype)
    module.load_state_dict(load_file(weights_path(job.checkpoint, job.name)), assign=True)
    return module.requires_grad_(False)


def timed(step: Callable[[], Any]) -> float:
    """Seconds of one step."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def keep_answer(job: Job, answer: Any) -> None:
    """The answer's tensors to a file, and for a cold compile what its caches hold to another."""
    import torch
    from safetensors.torch import save_file
    from torch.utils._pytree import tree_leaves

    tensors = [t for t in tree_leaves(answer) if isinstance(t, torch.Tensor)]
    save_file({str(i): t.contiguous() for i, t in enumerate(tensors)}, job.output)
    if job.way == COMPILE:
        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            Path(job.mega_cache).write_bytes(saved[0])


if __name__ == "__main__":
    from dataclasses import asdict

    sys.stdout.write(json.dumps(asdict(run(Job(**json.load(sys.stdin))))) + "\n")
