"""Cells built on a Ray cluster: where, and how often after a worker's death, is Ray's to decide.

Source: Ray's "Task fault tolerance": a task whose worker dies is run again, `max_retries` times.
"""

from __future__ import annotations

import io
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aotbuild.errors import ToolchainError
from aotbuild.matrix.cells import Cell
from aotbuild.matrix.environment import environment
from aotbuild.matrix.local import Outcome, Task, build_one
from aotbuild.reading import read

RETRIES = 3
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where and how.

    Attributes:
        address: of a cluster that runs, "auto" or "ray://HOST:PORT"; None for one of this machine's
            own, for as long as the matrix is built.
        jobs: of such an own one, builds at once.
        memory_bytes: what a build asks for.
        versions: what a worker must have; see `environment`.
    """

    address: str | None
    jobs: int
    memory_bytes: int
    versions: Mapping[str, str | None]


def build_on_ray(tasks: Sequence[Task], cluster: Cluster) -> Iterator[tuple[Task, Outcome]]:
    """Each task's outcome as it ends, its artifacts below the task's own store here.

    Raises:
        ToolchainError: Ray isn't installed.
    """
    try:
        import ray
    except ImportError as e:
        raise ToolchainError(
            "--engine ray needs Ray: `pip install 'aotbuild[ray]'`, here and on every worker."
        ) from e
    # "local" is a cluster of this machine's own, whatever RAY_ADDRESS says.
    own = {"address": "local", "num_cpus": cluster.jobs}
    where = own if cluster.address is None else {"address": cluster.address}
    ray.init(**where, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        memory_bytes = cluster.memory_bytes
        if cluster.address is None:  # else a small machine would wait for memory that never comes
            memory_bytes = min(memory_bytes, int(ray.cluster_resources().get("memory", 0)))
        again = {"max_retries": RETRIES, "retry_exceptions": True}
        remote = ray.remote(num_cpus=1, memory=memory_bytes, **again)(_built_there)
        waiting = {remote.remote(t.cell.to_json(), dict(cluster.versions)): t for t in tasks}
        while waiting:
            (ended,), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(ended)
            yield task, _received(task, ended, ray)
    finally:
        ray.shutdown()


def _received(task: Task, ended: Any, ray: Any) -> Outcome:
    """What came back: the outcome, its artifacts unpacked and its log written down."""
    task.log.parent.mkdir(parents=True, exist_ok=True)
    try:
        document, log, packed = ray.get(ended)
        task.log.write_text(log, encoding="utf-8")
        task.store.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(task.store, filter="data")
    except (ray.exceptions.RayError, tarfile.TarError, OSError) as e:
        said = _COLOURS.sub("", str(e)).strip() or "no word"
        task.log.write_text(said, encoding="utf-8")
        return Outcome(reason=f"{type(e).__name__}: {said.splitlines()[-1]}")
    outcome: Outcome = read(Outcome, {**document, "artifacts": []}, "outcome")
    artifacts = [{**a, "path": str(task.store / a["path"])} for a in document["artifacts"]]
    return replace(outcome, artifacts=tuple(artifacts))


def _built_there(
    document: dict[str, Any], versions: dict[str, str | None]
) -> tuple[dict[str, Any], str, bytes]:
    """On a worker: the cell built in a folder of its own; outcome, log, and a tar of the store."""
    cell: Cell = read(Cell, document, "cell")
    if reason := difference(versions, environment()):
        return asdict(Outcome(reason=reason)), reason, _tar(None)
    with tempfile.TemporaryDirectory(prefix="aotbuild-cell-") as work:
        store = Path(work) / "store"
        task = Task(cell=cell, store=store, log=Path(work) / "log")
        outcome = build_one(task)
        artifacts = [
            {**a, "path": str(Path(a["path"]).relative_to(store))} for a in outcome.artifacts
        ]
        found = {**asdict(outcome), "artifacts": artifacts}
        return found, task.log.read_text(encoding="utf-8", errors="replace"), _tar(store)


def difference(driver: Mapping[str, str | None], worker: Mapping[str, str | None]) -> str:
    """What a worker has otherwise, which would give another key; "" where nothing."""
    odd = [n for n in driver if worker.get(n) != driver[n]]
    named = ", ".join(f"{n} {worker.get(n) or 'missing'} (here {driver[n] or 'none'})" for n in odd)
    return f"refused: the worker has {named}. Install the same there." if odd else ""


def _tar(store: Path | None) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        if store is not None and (store / "artifacts").is_dir():
            archive.add(store / "artifacts", "artifacts")
    return data.getvalue()
