"""Carry a request out: plan it, make what the store lacks, a worker process each, verify, store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aotbuild import errors
from aotbuild.build import tuning
from aotbuild.build.cuda_host import header_roots, make_cuda_host
from aotbuild.build.job import Job
from aotbuild.build.plan import plan
from aotbuild.build.request import BuildRequest, Built, Event, Planned
from aotbuild.build.targets import runs_here, target_for
from aotbuild.build.tuning import TuningTable, choices_of, read_table, table_path, write_table
from aotbuild.build.verify import check_record, verify_in_process
from aotbuild.cache.artifact import Entry
from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.store import Store
from aotbuild.errors import BuildError
from aotbuild.target import Target

__all__ = ["BuildRequest", "Built", "Event", "Planned", "build", "ensure", "plan", "target_of"]

OnEvent = Callable[[Event], None]

_OURS = ("TORCH", "TRITON", "INDUCTOR", "PYTORCH", "DIFFUSERS_ATTN")
"""Prefixes of variables that change what is compiled; a key knows none of them."""


def target_of(request: BuildRequest) -> Target:
    """The target of a request."""
    return target_for(request.gpu, request.recipe)


def build(request: BuildRequest, on_event: OnEvent = lambda _: None) -> list[Built]:
    """Make every artifact of `request` that the store lacks.

    Safe beside other builders of the same store: the second one waits for the first's artifact.

    Raises:
        UsageError, BuildError, StoreError: the first failure; what was stored before stays.
    """
    store = Store(request.store)
    return [ensure(store, planned, request, on_event) for planned in plan(request, on_event)]


def ensure(store: Store, planned: Planned, request: BuildRequest, on_event: OnEvent) -> Built:
    """Make one artifact of `request` if the store lacks it.

    Raises:
        BuildError, StoreError: it failed.
    """
    if planned.cached and (entry := store.get(planned.key)) is not None:
        return _built(store, entry, cached=True)
    with store.lock(planned.key):
        if (entry := store.get(planned.key)) is not None:
            return _built(store, entry, cached=True)
        return _make(store, planned, request, on_event)


def _make(store: Store, planned: Planned, request: BuildRequest, on_event: OnEvent) -> Built:
    with store.staging() as root:
        made = run_worker(planned.job, planned.key, root, on_event)
        folder = Path(made["folder"])
        seconds = {"rehearse": planned.rehearse_s, **made["seconds"]}
        manifest = Manifest.from_bytes((folder / "manifest.json").read_bytes())
        if request.tune:
            _keep_choices(request, manifest)
        if request.verify and runs_here(manifest.target):
            started = time.monotonic()
            on_event(Event(stage="verify", component=planned.component))
            record = verify_in_process(root, planned.key)
            check_record(record, planned.component)
            seconds["verify"] = round(time.monotonic() - started, 3)
            on_event(Event(stage="verify", component=planned.component, seconds=seconds["verify"]))
            write_manifest(folder, replace(manifest, verification=(record,)))
        entry = store.add(folder)
        on_event(Event(stage="store", component=planned.component, message=str(entry.folder)))
        return _built(store, entry, cached=False, seconds=seconds, peak_bytes=made["peak_bytes"])


def _keep_choices(request: BuildRequest, manifest: Manifest) -> None:
    """Add what was measured for this artifact to the recipe's tuning table."""
    import torch

    arch, name = manifest.target.arch, request.recipe.name
    path = table_path(request.recipe_path, request.store, name, arch)
    table = TuningTable(
        format=tuning.FORMAT,
        arch=arch,
        gpu=torch.cuda.get_device_name(),
        torch=manifest.target.torch,
        choices=choices_of(manifest.checks),
    )
    write_table(path, table.merged(read_table(path)))


def run_worker(job: dict[str, Any], key: str, root: Path, on_event: OnEvent) -> dict[str, Any]:
    """Run `build.worker` on a job; its events go to `on_event`, its result comes back.

    Raises:
        BuildError: it failed or died; with the end of what it printed.
    """
    with _work_folder(root) as work, tempfile.TemporaryFile("w+", errors="replace") as log:
        environment = worker_environment(dict(os.environ), work)
        asked = Job.from_json(job)
        if asked.backend == INDUCTOR_CACHE:
            del environment["TORCHINDUCTOR_COMPILE_THREADS"]
        elif asked.gpu.startswith("sm_"):
            environment |= _cuda_environment(work, visible=asked.tune)
        worker = subprocess.Popen(
            [sys.executable, "-m", "aotbuild.build.worker", str(root), str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        try:
            answer = _listen(worker, {"job": job, "key": key}, on_event)
        finally:
            worker.kill()
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
        if "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
        if "error" in answer:
            raise getattr(errors, answer["kind"], BuildError)(answer["error"])
        log.seek(0)
        tail = log.read()[-3000:].strip()
    raise BuildError(
        f"The build process ended with exit code {worker.returncode} and no word"
        f"{', killed: out of memory?' if worker.returncode == -9 else ''}. It printed: {tail}"
    )


@contextmanager
def _work_folder(root: Path) -> Iterator[Path]:
    """A folder for caches and sources: below `root`, unless a compiler can't be called there.

    Inductor puts commands together without quoting, so spaces and the like must not be in a path.
    """
    plain = re.fullmatch(r"[\w./+-]+", str(root)) is not None
    with tempfile.TemporaryDirectory(prefix="work-", dir=root if plain else None) as folder:
        yield Path(folder)


def _listen(
    worker: subprocess.Popen[str], document: dict[str, Any], on_event: OnEvent
) -> dict[str, Any]:
    """The worker's last word, {"result": ...} or {"error": ...}; {} if it had none."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        with worker.stdin as pipe:
            json.dump(document, pipe)
    except BrokenPipeError:
        return {}
    for line in worker.stdout:
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a library that prints
        if "result" in said or "error" in said:
            worker.wait()
            return said
        on_event(Event(**said))
    worker.wait()
    return {}


def worker_environment(environment: dict[str, str], work: Path) -> dict[str, str]:
    """The environment of a build: own caches, and no variable that steers torch's compilers."""
    kept = {n: v for n, v in environment.items() if not n.startswith(_OURS)}
    ours = {
        "TORCHINDUCTOR_CACHE_DIR": str(work / "cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TRITON_CACHE_DIR": str(work / "triton"),
        "TMPDIR": str(work),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C",
    }
    return {**kept, **ours}


def _cuda_environment(work: Path, *, visible: bool) -> dict[str, str]:
    """What a build for a GPU needs besides: headers, the driver's stub, and no GPU in sight.

    Args:
        visible: leave the GPU in sight, since it is measured.
    """
    import torch

    site_packages = Path(torch.__file__).parent.parent
    host = make_cuda_host(
        work / "cuda",
        torch_cuda=torch.version.cuda,
        roots=header_roots(site_packages, os.environ),
    )
    environment = host.environment(work / "cache")
    if visible:
        del environment["CUDA_VISIBLE_DEVICES"]
    return environment


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace a staged artifact's manifest, whole or not at all."""
    temporary = folder / "manifest.json.new"
    temporary.write_bytes(manifest.to_bytes())
    temporary.replace(folder / "manifest.json")


def _built(
    store: Store,
    entry: Entry,
    *,
    cached: bool,
    seconds: dict[str, float | None] | None = None,
    peak_bytes: int | None = None,
) -> Built:
    manifest = entry.manifest
    records = store.verifications(entry)
    return Built(
        component=manifest.component,
        key=manifest.key,
        path=entry.folder,
        signature=manifest.signature,
        bytes=sum(f.bytes for f in manifest.files),
        cached=cached,
        verified=any(r.get("passed") is True for r in records),
        seconds=seconds or {},
        peak_bytes=peak_bytes,
    )
