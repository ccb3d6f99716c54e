"""A matrix carried out: what is finished is left, the rest built, kept in the store, journaled."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotbuild.cache.item import Item
from aotbuild.cache.store import Store
from aotbuild.errors import AotbuildError
from aotbuild.matrix.cells import Cell
from aotbuild.matrix.environment import recipe_digest
from aotbuild.matrix.journal import DONE, FAILED, Journal, Line
from aotbuild.matrix.local import Outcome, Task
from aotbuild.matrix.published import is_published

Engine = Callable[[Sequence[Task]], Iterator[tuple[Task, Outcome]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A cell, and what is known of it before it is built.

    Attributes:
        versions: what decides its keys now, see `journal.Line`.
        finished: the journal's line, where its artifacts are in the store; None: it is to build.
        published: whether the collection that was named has something of it; None: none was.
        seconds, peak_bytes: what the same recipe's builds took for such a kind of device, the
            median and the most; None where there were none.
    """

    cell: Cell
    versions: dict[str, str | None]
    finished: Line | None
    published: bool | None
    seconds: float | None
    peak_bytes: int | None


def prospects(
    cells: Sequence[Cell],
    journal: Journal,
    store: Store,
    versions: dict[str, str | None],
    items: Sequence[Item] | None = None,
) -> tuple[Prospect, ...]:
    """What is known of each cell; `items` are those of a collection."""
    recipes = {name: recipe_digest(name) for name in {cell.recipe for cell in cells}}
    written = journal.lines()
    past = [line for line in written if line.seconds]
    found = []
    for cell in cells:
        own = {**versions, "recipe": recipes[cell.recipe]}
        lines = [x for x in written if x.cell == cell and x.versions == own]
        line = lines[-1] if lines else None
        done = line is not None and line.status == DONE and all(map(store.get, line.keys))
        alike = [x for x in past if x.status == DONE and _kind(x.cell) == _kind(cell)]
        found.append(
            Prospect(
                cell=cell,
                versions=own,
                finished=line if done else None,
                published=None if items is None else is_published(cell, items, versions),
                seconds=statistics.median(x.seconds for x in alike) if alike else None,
                peak_bytes=max((x.peak_bytes for x in alike if x.peak_bytes), default=None),
            )
        )
    return tuple(found)


def carry_out(
    found: Sequence[Prospect],
    engine: Engine,
    journal: Journal,
    store: Store,
    logs: Path,
) -> Iterator[Line]:
    """Build what isn't finished; a line as each cell ends, written down before it is given.

    An artifact enters the store once every byte of it was hashed; a cell that fails costs the
    others nothing.
    """
    waiting = {p.cell: p.versions for p in found if p.finished is None}
    with tempfile.TemporaryDirectory(prefix="aotbuild-matrix-") as work:
        tasks = [
            Task(cell=cell, store=Path(work) / str(i), log=logs / f"{cell.slug}.log")
            for i, cell in enumerate(waiting)
        ]
        for task, outcome in engine(tasks):
            line = _line(task, outcome, store, waiting[task.cell])
            journal.append(line)
            yield line


def _line(task: Task, outcome: Outcome, store: Store, versions: dict[str, str | None]) -> Line:
    reason, keys = outcome.reason, tuple(str(a["key"]) for a in outcome.artifacts)
    try:
        for artifact in outcome.artifacts:
            store.add(Path(artifact["path"]))
    except (AotbuildError, OSError) as e:
        reason = str(e)
    return Line(
        cell=task.cell,
        status=FAILED if reason else DONE,
        versions=versions,
        keys=() if reason else keys,
        seconds=outcome.seconds,
        peak_bytes=outcome.peak_bytes,
        reason=reason,
        log=str(task.log),
    )


def _kind(cell: Cell) -> tuple[str, bool, str]:
    """Cells that take about as long as each other."""
    return cell.recipe, cell.gpu == "cpu" or cell.gpu.startswith("x86"), cell.scope
