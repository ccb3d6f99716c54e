"""The process that makes one artifact: rehearse, prepare, export, compile, repack, write it out.

    python -m aotbuild.build.worker ROOT WORK     a job as JSON on stdin, events as JSON lines out

One process compiles one artifact, since Inductor's caches, registries and memoised answers are the
process's. Leaves verifying and storing to `run`.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aotbuild.build.job import Blueprint, Job
from aotbuild.build.package import Package
from aotbuild.cache.backend import AOT
from aotbuild.cache.files import Packed
from aotbuild.cache.manifest import FORMAT, Constant, Manifest
from aotbuild.cache.signature import Signature
from aotbuild.errors import AotbuildError, BuildError
from aotbuild.probe import peak_memory_bytes

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Make the artifact below ROOT; the last line says what was made, or why not."""
    die_with_parent()
    warnings.simplefilter("ignore")
    document = json.load(sys.stdin)
    job, key = Job.from_json(document["job"]), document["key"]
    try:
        _say(result=make(job, key, *map(Path, arguments)))
    except AotbuildError as e:
        _say(error=str(e), kind=type(e).__name__)
        return 1
    return 0


def make(job: Job, key: str, root: Path, work: Path) -> dict[str, Any]:
    """Make the artifact of `job` below `root`, which is laid out like a store; scratch in `work`.

    Returns:
        The artifact's folder, the seconds of each stage, and the peak memory.

    Raises:
        BuildError: it failed; or its key isn't `key`, because something changed meanwhile.
    """
    from aotbuild.build.blueprint import blueprint

    seconds: dict[str, float] = {}
    with _stage("rehearse", job.unit, seconds):
        print_ = blueprint(job)
    if print_.key != key:
        raise BuildError(
            f"{job.unit}: the key became {print_.key[:12]} where {key[:12]} was planned: a "
            "package, a config or the compiler changed meanwhile. Run the same command again."
        )
    folder = root / print_.folder
    folder.mkdir(parents=True)
    make_files = _compile if job.backend == AOT else _bundle
    manifest = make_files(print_, folder, work, seconds)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return {"folder": str(folder), "seconds": seconds, "peak_bytes": peak_bytes()}


def _compile(blueprint: Blueprint, folder: Path, work: Path, seconds: dict[str, float]) -> Manifest:
    import torch

    from aotbuild.build import package
    from aotbuild.build.compile import compile_package
    from aotbuild.build.constants import constant_plan
    from aotbuild.build.cubins import check_library
    from aotbuild.build.export import export_unit
    from aotbuild.build.modules import outline
    from aotbuild.build.prepare import prepare

    unit, target = blueprint.job.unit, blueprint.target
    device = "cuda:0" if target.device == "cuda" else "cpu"
    with _stage("export", unit, seconds):
        recorded = blueprint.recorded
        module = recorded.module()
        stock = outline(recorded.part(module))
        prepare(module, blueprint.component)
        exported = export_unit(
            recorded.part(module),
            recorded,
            device=device,
            dynamic=blueprint.dynamic,
            blocks=blueprint.component.blocks,
        )
        if exported.signature.calls() != blueprint.signature.calls():
            raise BuildError(f"{unit}: the exported program takes other calls than were planned.")
        constants = constant_plan(exported.program, stock)
    with _stage("compile", unit, seconds):
        compiled = compile_package(
            exported.program,
            arch=target.arch,
            options=blueprint.options,
            toolchain=blueprint.toolchain,
            folder=work,
            tuning=blueprint.job.tuning,
            tune=blueprint.job.tune,
            attention=blueprint.component.attention,
        )
    with _stage("package", unit, seconds):
        forbidden = (str(work), str(Path(torch.__file__).parent), sys.prefix)
        packed = package.repack(compiled.path, folder / "package.pt2", forbidden=forbidden)
        checks = {**compiled.checks, **check_library(packed.data, target, work)}
    checks["operators"] = exported.operators
    checks["unused"] = list(constants.unused)
    weights = _pack(blueprint, constants.constants, folder, seconds)
    return _manifest(blueprint, exported.signature, constants.constants, checks, packed, weights)


def _bundle(blueprint: Blueprint, folder: Path, work: Path, seconds: dict[str, float]) -> Manifest:
    """The unit compiled by torch.compile, and the caches that it leaves."""
    from dataclasses import replace

    from aotbuild.build.bundle import collect, fill
    from aotbuild.cache.bundle import BUNDLE

    unit = blueprint.job.unit
    with _stage("compile", unit, seconds):
        filled = fill(blueprint)
    with _stage("package", unit, seconds):
        packed = collect(work, folder / BUNDLE)
    constants, signature = filled.constants, blueprint.signature
    manifest = _manifest(blueprint, signature, constants, filled.checks, packed, None)
    state = {**manifest.state, **filled.state}
    return replace(manifest, module=filled.identity, state=state)


def _pack(
    blueprint: Blueprint,
    constants: tuple[Constant, ...],
    folder: Path,
    seconds: dict[str, float],
) -> Packed | None:
    """The constants written beside the package, where the job says so."""
    from aotbuild.build.pack import Source, pack

    job = blueprint.job
    if job.weights is None:
        return None
    with _stage("pack", job.unit, seconds):
        return pack(Source(**job.weights), blueprint.recorded, constants, folder)


def _manifest(
    blueprint: Blueprint,
    signature: Signature,
    constants: tuple[Constant, ...],
    checks: dict[str, Any],
    packed: Package,
    weights: Packed | None,
) -> Manifest:
    from dataclasses import replace

    import aotbuild
    from aotbuild.build.targets import runs_here
    from aotbuild.loaders.state import backend_state

    recorded, recipe = blueprint.recorded, blueprint.job.recipe
    backend = backend_state(blueprint.target.device, recipe.dtype)
    target = replace(
        blueprint.target,
        glibc=packed.library.glibc,
        glibcxx=packed.library.glibcxx,
        shared_memory_bytes=checks.get("shared_bytes_max"),
    )
    return Manifest(
        format=FORMAT,
        key=blueprint.key,
        backend=blueprint.job.backend,
        parts=blueprint.parts,
        component=recorded.unit,
        method=recorded.method,
        scope="full" if recorded.block is None else "regional",
        precision=recorded.precision,
        module=recorded.identity,
        signature=signature,
        state=recorded.state | ({"backend": backend} if backend else {}),
        constants=constants,
        target=target,
        recipe=recipe.to_json(),
        package=packed.package,
        library=packed.library_record,
        packed=weights,
        checks={
            **checks,
            "needed": list(packed.library.needed),
            "example_values": recorded.values,
        },
        provenance={
            "aotbuild": aotbuild.__version__,
            "checkpoint": recipe.checkpoint,
            "revision": recipe.revision,
            "built_across": not runs_here(target),
            "rehearsal": {
                "configs": blueprint.job.configs,
                "variant": blueprint.job.variant,
                "index": blueprint.job.index,
                "dynamic": blueprint.job.dynamic,
                "tuning": blueprint.job.tuning,
            },
            **({"blocks": list(recorded.block.paths)} if recorded.block else {}),
        },
        verification=(),
    )


def peak_bytes() -> int:
    """Most resident memory so far, of this process or of the largest of its children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return max(peak_memory_bytes(), children)


@contextmanager
def _stage(stage: str, unit: str, seconds: dict[str, float]) -> Iterator[None]:
    _say(stage=stage, component=unit)
    started = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - started, 3)
    _say(stage=stage, component=unit, seconds=seconds[stage])


def _say(**event: Any) -> None:
    sys.__stdout__.write(json.dumps(event) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def die_with_parent() -> None:
    """A builder that is killed takes its worker along, else it would go on compiling for nobody."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
