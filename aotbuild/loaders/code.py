"""An artifact's code opened for one module: a library of AOTInductor's, or a bundle of caches.

Whether the artifact fits was decided before; what only a bundle's own checks tell is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from aotbuild import probe
from aotbuild.cache.artifact import Entry
from aotbuild.cache.backend import CompileSettings
from aotbuild.cache.bundle import install, open_bundle
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import LoadError
from aotbuild.loaders.component import Component
from aotbuild.loaders.options import Options
from aotbuild.loaders.runner import Runner, open_library
from aotbuild.loaders.running import Code

_INSTRUCTIONS = (
    "3dnow abm adx aes amx avx bmi clflush clwb clzero cldemote cx16 enqcmd f16c fma fsgsbase fxsr "
    "gfni hle lahf lzcnt mmx mov mwaitx pclmul pku pni popcnt ptwrite rdpid rdrand rdseed rtm "
    "serialize sha sse ssse tbm uintr vaes vpclmul waitpkg wbnoinvd xop xsave"
)
"""Beginnings of the flags that `-march=native` may make use of. Source: GCC's x86 options."""


Opened: TypeAlias = Callable[[Component], Code]
"""Gives each module that the code is bound to a container of its own."""


def open_code(entry: Entry, device: torch.device, options: Options) -> Opened:
    """The code of `entry`, for modules on `device`; what it returns may raise a LoadError too.

    Raises:
        IntegrityError: a file of the artifact isn't the recorded one.
        LoadError: a bundle that would not be hit here, or can't be put where it is looked for.
        StoreError: no space left.
    """
    record = entry.manifest.library
    if record is None:
        return _open_bundle(entry, device)
    library = open_library(record.sha256, options.store.open_library(entry))
    return lambda component: Runner(library, component.device, options.num_runners)


def _open_bundle(entry: Entry, device: torch.device) -> Opened:
    """The bundle put into this process's caches, and the function that will hit them."""
    from aotbuild.loaders.jit import JitCode, cache_roots, compiled

    manifest = entry.manifest
    if reason := misfit(manifest, device):
        raise LoadError(reason)
    with open_bundle(entry.folder, manifest) as archive:
        install(archive, cache_roots(device), entry.folder / manifest.package.name)
    settings = CompileSettings.of(manifest.parts)
    function = compiled(settings, fullgraph=manifest.checks.get("fullgraph") is True)

    def bound(component: Component) -> Code:
        _check_grad(manifest, component)
        return JitCode(component.module, manifest, function)

    return bound


def misfit(manifest: Manifest, device: torch.device) -> str | None:
    """Why what is in the bundle would not be found here, or must not be run; None where it fits."""
    from aotbuild.loaders.jit import compile_command

    checks = manifest.checks
    asked = str(checks.get("cpu_flags", "")).split()
    if missing := sorted(set(asked) - probe.cpu_flags()):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return (
            "Its C++ code is for the very kind of CPU that it was built on: this one lacks "
            f"{', '.join(missing[:3])}{more}."
        )
    name = None if device.type == "cpu" else torch.cuda.get_device_name(device)
    if name != checks.get("device"):
        return (
            f"Inductor's caches are by the GPU's name: it is of a {checks.get('device')}, and here "
            f"is a {name}."
        )
    if name is None and compile_command() != checks.get("command"):
        return (
            "Inductor names compiled C++ by the compiler's flags and paths, and here torch, Python "
            "or the compiler lie elsewhere than where the bundle was built: nothing of it would be "
            "found. Build it in the environment that serves."
        )
    return None


def _check_grad(manifest: Manifest, component: Component) -> None:
    """Refuse with a LoadError a module whose parameters aren't as the bundle's were."""
    wanted = manifest.checks.get("requires_grad") is True
    if any(p.requires_grad for p in component.module.parameters()) is not wanted:
        raise LoadError(
            "Inductor's caches tell parameters that require grad from those that don't, and the "
            f"bundle's are the others: call {component.name}.requires_grad_({wanted}) before "
            "aotbuild.load."
        )


def instruction_flags() -> str:
    """This CPU's flags that compilers make use of, sorted, with spaces between."""
    beginnings = tuple(_INSTRUCTIONS.split())
    return " ".join(sorted(f for f in probe.cpu_flags() if f.startswith(beginnings)))
