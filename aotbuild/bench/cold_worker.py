"""One process of `bench cold-start`: goes one way to a first step, and times each part.

    python -m aotbuild.bench.cold_worker < job.json      prints a `Run` as the last line

Which ways are run, how often and in what order is `cold_start`'s.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import json  # noqa: E402 (the clock starts before any import)
import operator  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from typing import TYPE_CHECKING, Any, NamedTuple  # noqa: E402

from aotbuild.bench.ways import AOTBUILD, AOTI, COMPILE, EAGER, MEGA_CACHE, PACKED, Job, Run  # noqa: E402

if TYPE_CHECKING:
    import torch
    from torch import nn

    from aotbuild.cache.artifact import Entry
    from aotbuild.cache.manifest import Constant

Step = Callable[[], Any]


class Parts(NamedTuple):
    """What a way spent before its first step; see `Run`."""

    load_s: float = 0.0
    bind_s: float = 0.0
    weights_s: float = 0.0
    derived_bytes: int = 0
    freed_bytes: int = 0


Started = tuple[Step, Parts]


def run(job: Job) -> Run:
    """Go the job's way; see `Run` for what is measured."""
    import_libraries(job.way)
    imported = time.perf_counter()
    module = None if job.way == PACKED else mapped_module(job)
    weighted = time.perf_counter()
    import torch

    from aotbuild.bench.subject import call_of
    from aotbuild.cache.store import Store

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

    if way in (AOTBUILD, PACKED):
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


def eager(job: Job, module: nn.Module, entry: Entry, call: dict[str, Any]) -> Started:
    """The stock module as it is."""
    del job, entry
    return (lambda: module(**call)), Parts()


def compiled(job: Job, module: nn.Module, entry: Entry, call: dict[str, Any]) -> Started:
    """`torch.compile` with the artifact's own preparation and options."""
    import torch

    from aotbuild.build.prepare import prepare
    from aotbuild.reading import read
    from aotbuild.recipe import ComponentRecipe

    del entry
    begun = time.perf_counter()
    if job.way == MEGA_CACHE:
        torch.compiler.load_cache_artifacts(Path(job.mega_cache).read_bytes())
    loaded = time.perf_counter()
    prepare(module, read(ComponentRecipe, job.component, "component"))
    options = job.component["inductor"] or None
    function = torch.compile(module, fullgraph=True, options=options)
    return (lambda: function(**call)), Parts(loaded - begun, time.perf_counter() - loaded)


def aoti(job: Job, module: nn.Module, entry: Entry, call: dict[str, Any]) -> Started:
    """torch's own way to load the same package, its weights bound as they are, not copied."""
    import torch

    del job
    begun = time.perf_counter()
    package = torch._inductor.aoti_load_package(str(entry.folder / entry.manifest.package.name))
    loaded = time.perf_counter()
    constants = {c.name: constant_of(module, c) for c in entry.manifest.constants}
    package.load_constants(constants, check_full_update=True, user_managed=True)
    bound = time.perf_counter()
    return (lambda: package(**call)), Parts(loaded - begun, bound - loaded)


def constant_of(module: nn.Module, constant: Constant) -> torch.Tensor:
    """The tensor that the manifest's plan asks for, copied only where its layout is another."""
    import torch

    if constant.value is not None:
        dtype = getattr(torch, constant.dtype)
        return torch.tensor(constant.value, dtype=dtype).reshape(constant.shape)
    from aotbuild.loaders.rules import make

    value = make(constant, [operator.attrgetter(path)(module) for path in constant.sources])
    if value.dim() == 4 and value.stride() != constant.stride:
        value = value.contiguous(memory_format=torch.channels_last)
    return value.detach()


def artifact(job: Job, module: nn.Module, entry: Entry, call: dict[str, Any]) -> Started:
    """`aotbuild.load`, then the stock call."""
    import aotbuild

    name = entry.manifest.component.partition(".")[0]
    begun = time.perf_counter()
    loaded = aotbuild.load(
        SimpleNamespace(**{name: module}),
        Path(job.store),
        store=Path(job.store),
        components=[entry.manifest.component],
        fallback="error",
    )
    total_s = time.perf_counter() - begun
    unit = loaded.metrics()[entry.manifest.component]
    step = getattr(module, entry.manifest.method)
    return (lambda: step(**call)), _parts(unit, total_s)


def packed(job: Job, entry: Entry, call: dict[str, Any]) -> Started:
    """`aotbuild.load_component`: no module, no eager weights."""
    import aotbuild

    begun = time.perf_counter()
    component = aotbuild.load_component(Path(job.store), component=entry.manifest.component)
    total_s = time.perf_counter() - begun
    (unit,) = component.loaded.metrics().values()
    return (lambda: component(**call)), _parts(unit, total_s)


def _parts(unit: dict[str, Any], total_s: float) -> Parts:
    """Of a unit's metrics.

    What isn't binding or mapping is looking: listing the store, matching, opening the library.
    """
    weights_s, bind_s = unit["weights_s"], unit["bind_s"]
    return Parts(
        load_s=total_s - bind_s - weights_s,
        bind_s=bind_s,
        weights_s=weights_s,
        derived_bytes=unit["derived_bytes"] + unit["extra_bytes"],
        freed_bytes=unit["freed_bytes"],
    )


WAY_STEPS = {EAGER: eager, AOTI: aoti, AOTBUILD: artifact}
"""The other ways are `compiled`."""


def timed(step: Step) -> float:
    """Seconds of one step."""
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def peak_memory_bytes() -> int:
    """The high-water mark of this process alone.

    Not `ru_maxrss`: a process inherits that from the one that started it.
    Source: proc_pid_status(5), VmHWM.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


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
