"""Cells built on this machine: a process each, some at once. What follows is `run`'s."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

from aotbuild.matrix.cells import Cell

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A cell to build: into `store`, an empty folder of its own; what the build says, to `log`."""

    cell: Cell
    store: Path
    log: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a build left.

    Attributes:
        artifacts: the objects of `build --json`. reason: why there are none; "" if it ended well.
        seconds: from its start to its end.
    """

    artifacts: tuple[dict[str, Any], ...] = ()
    reason: str = ""
    seconds: float = 0.0

    @property
    def peak_bytes(self) -> int | None:
        """The most that one of its processes held."""
        return max((p for a in self.artifacts if (p := a["peak_bytes"])), default=None)


@dataclass(slots=True)
class _Running:
    """The builds in flight, and whether no more are to begin."""

    ended: Event = field(default_factory=Event)
    lock: Lock = field(default_factory=Lock)
    processes: set[subprocess.Popen[str]] = field(default_factory=set)

    def stop(self) -> None:
        self.ended.set()
        with self.lock:
            for process in self.processes:
                process.terminate()


def build_locally(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Outcome]]:
    """Each task's outcome as it ends, `jobs` at once; leaving the loop early ends all of them."""
    running = _Running()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            futures = {pool.submit(build_one, task, running): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            running.stop()
            pool.shutdown(wait=True, cancel_futures=True)


def build_one(task: Task, running: _Running | None = None) -> Outcome:
    """Build one task, whatever becomes of it."""
    running = _Running() if running is None else running
    begun = time.monotonic()
    command = [sys.executable, "-m", "aotbuild.matrix.child", "build", *task.cell.arguments()]
    task.log.parent.mkdir(parents=True, exist_ok=True)
    with task.log.open("w", encoding="utf-8") as log:
        with running.lock:
            if running.ended.is_set():
                return Outcome(reason="interrupted before it began")
            process = subprocess.Popen(
                [*command, "--store", str(task.store), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            running.processes.add(process)
        answer, _ = process.communicate()
        with running.lock:
            running.processes.discard(process)
    seconds = round(time.monotonic() - begun, 3)
    if process.returncode:
        return Outcome(reason=_reason(task.log, process.returncode), seconds=seconds)
    try:
        return Outcome(artifacts=tuple(json.loads(answer)["artifacts"]), seconds=seconds)
    except (ValueError, KeyError, TypeError) as e:
        return Outcome(reason=f"its answer can't be read: {e}", seconds=seconds)


def _reason(log: Path, code: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = next((line for line in reversed(lines) if line.startswith(("aotbuild:", "Error:"))), "")
    return f"exit code {code}: {said or (lines[-1] if lines else 'it said nothing')}"[
        :_LONGEST_REASON
    ]
