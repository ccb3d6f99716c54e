"""JIT-cache bundles made: a unit compiled by torch.compile in this process, its caches collected.

The process must be the unit's own, with empty caches: see `run.worker_environment`. What a bundle
is for, and why it is hit, `loaders.jit` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotbuild.build.job import Blueprint
from aotbuild.build.package import Library, Package, file_record, read_library
from aotbuild.cache.backend import CompileSettings
from aotbuild.cache.bundle import write_bundle
from aotbuild.cache.constant import Constant
from aotbuild.cache.identity import ModuleIdentity
from aotbuild.errors import BuildError, CompileError
from aotbuild.target import version_tuple

if TYPE_CHECKING:
    from torch import nn

KEPT = ("fxgraph", "aotautograd")
"""Folders of Inductor's cache that a start reads whole. Of the others it reads compiled libraries
and what autotuning chose; sources and locks it writes anew."""

KEPT_SUFFIXES = (".so", ".best_config")

_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What was compiled, as a loader's module must be to hit it.

    Attributes:
        identity, state: of the prepared module, or block. constants: its parameters and buffers.
        checks: what else must be the same where it is loaded.
    """

    identity: ModuleIdentity
    state: dict[str, Any]
    constants: tuple[Constant, ...]
    checks: dict[str, Any]


def fill(blueprint: Blueprint) -> Filled:
    """Compile the blueprint's unit with random weights, so that this process's caches have it.

    Raises:
        BuildError: torch.compile fails, with and without graph breaks.
    """
    import torch

    from aotbuild.loaders.code import instruction_flags
    from aotbuild.loaders.jit import compile_command

    part = _prepared(blueprint)
    identity, state = _seen(blueprint, part)
    fullgraph = _compile(blueprint, part)
    cpu = blueprint.target.device == "cpu"
    return Filled(
        identity=identity,
        state=state,
        constants=tuple(_constants(part)),
        checks={
            "fullgraph": fullgraph,
            "requires_grad": any(p.requires_grad for p in part.parameters()),
            "cpu_flags": instruction_flags() if cpu else "",
            "command": compile_command() if cpu else None,
            "device": torch.cuda.get_device_name() if not cpu else None,
        },
    )


def collect(work: Path, out: Path) -> Package:
    """Put what a start needs of the caches below `work` into the bundle `out`.

    Raises:
        BuildError: the caches are empty.
    """
    caches = {"inductor": work / "cache", "triton": work / "triton"}
    files = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in caches.items()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (name == "triton" or _is_needed(path.relative_to(root)))
    }
    if not any(name.startswith(f"inductor/{KEPT[0]}/") for name in files):
        raise BuildError(
            "torch.compile left nothing in Inductor's cache: it can't keep this module's graph."
        )
    write_bundle(out, files)
    return Package(
        package=file_record(out.name, out.read_bytes()),
        library_record=None,
        library=_asked(files.values()),
        data=b"",
    )


def _is_needed(path: Path) -> bool:
    return path.parts[0] in KEPT or path.suffix in KEPT_SUFFIXES


def _asked(files: Any) -> Library:
    """What the compiled libraries among `files` ask of the system, together."""
    found = [read_library(f.read_bytes()) for f in files if f.suffix == ".so"]
    highest = {
        name: max(
            (v for lib in found if (v := getattr(lib, name))), key=version_tuple, default=None
        )
        for name in ("glibc", "glibcxx")
    }
    needed = sorted({n for lib in found for n in lib.needed})
    return Library(glibc=highest["glibc"], glibcxx=highest["glibcxx"], needed=tuple(needed))


def _prepared(blueprint: Blueprint) -> nn.Module:
    """The unit's module, or block, as the recipe prepares it, on its device, weights random."""
    from aotbuild.build.modules import fill_random
    from aotbuild.build.prepare import prepare

    recorded = blueprint.recorded
    whole = recorded.module()
    part = recorded.part(whole)
    fill_random(part, _SEED)
    prepare(whole, blueprint.component)
    whole.requires_grad_(True)  # as `from_pretrained` leaves it
    return part.to(blueprint.target.device)


def _seen(blueprint: Blueprint, part: nn.Module) -> tuple[ModuleIdentity, dict[str, Any]]:
    """What a loader will see of the module, once its owner has prepared it alike."""
    from aotbuild.loaders.blocks import identify_block
    from aotbuild.loaders.state import identify, module_state

    whole = blueprint.recorded.block is None
    return (identify if whole else identify_block)(part), module_state(part)


def _compile(blueprint: Blueprint, part: nn.Module) -> bool:
    """Call the unit once for each case of its signature; whether it is one graph."""
    from aotbuild.loaders.jit import JitCall, compiled

    settings = CompileSettings.of(blueprint.parts)
    method, signature = blueprint.recorded.method, blueprint.signature
    calls = list(_inputs(blueprint))
    for fullgraph in (True, False):
        call = JitCall(part, method, signature, compiled(settings, fullgraph=fullgraph))
        try:
            for inputs in calls:
                call(inputs)
        except CompileError as e:
            if fullgraph:
                continue
            raise BuildError(f"{blueprint.job.unit}: {e}") from e
        return fullgraph
    raise AssertionError


def _inputs(blueprint: Blueprint) -> Iterator[list[Any]]:
    from aotbuild.build.examples import cases, example_call
    from aotbuild.cache.signature import flatten

    device, signature = blueprint.target.device, blueprint.signature
    for sizes in cases(signature):
        call = example_call(signature, blueprint.recorded.values, sizes, device=device, seed=_SEED)
        leaves = dict(flatten(call))
        yield [_laid_out(leaves[s.path], s.stride) for s in signature.inputs]


def _laid_out(tensor: Any, stride: tuple[int, ...] | None) -> Any:
    """In the layout that a loader brings arguments to."""
    import torch

    if stride is None or tensor.stride() == stride:
        return tensor
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _constants(part: nn.Module) -> Iterator[Constant]:
    """Every parameter and buffer, as the code was compiled for."""
    for name, tensor in (*part.named_parameters(), *part.named_buffers()):
        yield Constant(
            name=name,
            rule="tensor/1",
            sources=(name,),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            stride=tuple(tensor.stride()),
        )
