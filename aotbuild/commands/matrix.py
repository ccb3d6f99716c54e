"""`matrix`: many builds as one document; `aotbuild.matrix` carries it out."""

from __future__ import annotations

from pathlib import Path

import click

from aotbuild import probe
from aotbuild.cache.hub import Hub
from aotbuild.cache.item import Item
from aotbuild.cache.publish import read_index
from aotbuild.cache.store import Store
from aotbuild.commands.build import check_writable
from aotbuild.commands.matrix_report import Pace, display, markdown, show_plan
from aotbuild.commands.output import json_option, make_out, print_json, store_option
from aotbuild.commands.push import put
from aotbuild.commands.request import check_installed
from aotbuild.errors import AotbuildError, BuildError, SourceError, UsageError
from aotbuild.matrix.cells import read_matrix
from aotbuild.matrix.cluster import Cluster, build_on_ray
from aotbuild.matrix.environment import environment
from aotbuild.matrix.journal import DONE, Journal, Line
from aotbuild.matrix.local import build_locally
from aotbuild.matrix.run import Engine, carry_out, prospects

MEMORY_BYTES = 3_000_000_000
"""What one build may need: docs/coverage.md has none above 2.3 GB."""


@click.command()
@click.argument("file", metavar="MATRIX.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--plan", "only_plan", is_flag=True, help="Say what would be built, and build none.")
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Processes of this machine, or a Ray cluster.",
)
@click.option("--address", help="Of a Ray cluster that runs; else one of this machine's own.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Builds at once on this machine.  [default: as many as cores and memory allow]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("matrix-results"),
    show_default=True,
    help="Folder of the journal, the logs and report.md. The same one goes on where it stopped.",
)
@click.option(
    "--push", "repository", metavar="REPO", help="Publish each cell's artifacts there as it ends."
)
@click.option(
    "--against", metavar="REPO", help="For --plan: a collection that may have some of it already."
)
@store_option
@json_option
def matrix(
    file: Path,
    only_plan: bool,
    engine: str,
    address: str | None,
    jobs: int | None,
    out: Path,
    repository: str | None,
    against: str | None,
    store: Path,
    as_json: bool,
) -> None:
    """Build every cell of MATRIX.toml: recipes times GPUs times sizes times precisions.

    Each cell is a process of its own, as `aotbuild build` would be called, with an empty store;
    what it made enters the store once every byte of it was hashed. What the journal has and the
    store still holds isn't built again. A cell that fails is reported with its log, the others go
    on, and the exit code is 1.
    """
    if address is not None and engine != "ray":
        raise UsageError("--address is a Ray cluster's: add --engine ray.")
    cells = read_matrix(file)
    check_installed()
    check_writable(store)
    out, kept, versions = make_out(out), Store(store), environment()
    journal = Journal(out)
    items = _published(against, repository) if only_plan else None
    found = prospects(cells, journal, kept, versions, items)
    if only_plan:
        show_plan(found, as_json)
        return
    at_once = jobs or default_jobs()
    builder = _engine(engine, address, at_once, versions)
    publisher = _Publisher(repository, kept)
    lines = publisher.put([p.finished for p in found if p.finished is not None])
    with display(Pace(len(lines), len(found), at_once)) as ended:
        for line in carry_out(found, builder, journal, kept, out / "logs"):
            lines += publisher.put([line])
            ended(line)
    (out / "report.md").write_text("\n".join(markdown(lines)) + "\n", encoding="utf-8")
    if as_json:
        print_json({"cells": [line.to_json() for line in lines]})
    _check(lines, publisher)


class _Publisher:
    """Puts what is done into a collection, if one was named; a failure of it stops no build."""

    def __init__(self, repository: str | None, store: Store) -> None:
        self.failures: list[str] = []
        self._repository, self._store = repository, store

    def put(self, lines: list[Line]) -> list[Line]:
        """Publish the artifacts of those that are done; gives `lines` back."""
        entries = [self._store.find(k) for line in lines if line.status == DONE for k in line.keys]
        if self._repository is None or not entries:
            return lines
        try:
            put(Hub(), self._repository, self._store, entries)
        except AotbuildError as e:
            self.failures.append(str(e))
            click.echo(f"not published: {e}", err=True)
        return lines


def _published(against: str | None, repository: str | None) -> tuple[Item, ...] | None:
    """What the collection has; one that is to be pushed to needn't be there yet."""
    name, hub = against or repository, Hub()
    if name is None:
        return None
    try:
        return read_index(hub, hub.look(name)).items
    except SourceError:
        if against is not None:
            raise
        return ()


def _check(lines: list[Line], publisher: _Publisher) -> None:
    """Refuse to end well where a cell failed, or wasn't published.

    Raises:
        BuildError: how many, and the first one's reason.
    """
    failed = [line for line in lines if line.status != DONE]
    if failed:
        raise BuildError(
            f"{len(failed)} of {len(lines)} cells failed: {failed[0].cell.name}: "
            f"{failed[0].reason} {failed[0].log} has all of it; the same command tries them again."
        )
    if publisher.failures:
        raise BuildError(
            f"All cells are built, and {len(publisher.failures)} times publishing failed: "
            f"{publisher.failures[0]} The same command publishes what is missing."
        )


def _engine(name: str, address: str | None, jobs: int, versions: dict[str, str | None]) -> Engine:
    if name == "local":
        return lambda tasks: build_locally(tasks, jobs)
    cluster = Cluster(address=address, jobs=jobs, memory_bytes=MEMORY_BYTES, versions=versions)
    return lambda tasks: build_on_ray(tasks, cluster)


def default_jobs() -> int:
    """As many builds as there are cores, and memory for."""
    return max(1, min(probe.cores(), probe.available_memory_bytes() // MEMORY_BYTES))
