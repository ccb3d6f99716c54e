"""The ways' own parts of `bench cold-start`: from a module to a step that can be called, timed.

What is timed around them is `cold_worker`'s.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from aotbuild.bench.ways import AOTBUILD, AOTI, BUNDLE, EAGER, MEGA_CACHE, Job

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
    prepare(module, read(ComponentRecipe, job.component, "component"), for_export=False)
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


def bundle(job: Job, module: nn.Module, entry: Entry, call: dict[str, Any]) -> Started:
    """`aotbuild.load` of a JIT-cache bundle, for the module prepared as the recipe says."""
    import aotbuild
    from aotbuild.build.prepare import prepare
    from aotbuild.reading import read
    from aotbuild.recipe import ComponentRecipe

    begun = time.perf_counter()
    prepare(module, read(ComponentRecipe, job.component, "component"))
    module.requires_grad_(True)
    prepared = time.perf_counter()
    name, store = entry.manifest.component, Path(job.store)
    loaded = aotbuild.load(
        SimpleNamespace(**{name.partition(".")[0]: module}),
        store,
        store=store,
        fallback="error",
        allow_jit_cache=True,
    )
    parts = _parts(loaded.metrics()[name], time.perf_counter() - prepared)
    step = getattr(module, entry.manifest.method)
    return (lambda: step(**call)), parts._replace(bind_s=parts.bind_s + prepared - begun)


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


WAY_STEPS = {EAGER: eager, AOTI: aoti, AOTBUILD: artifact, BUNDLE: bundle}
"""The other ways are `compiled`."""
