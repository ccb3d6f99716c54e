"""`matrix`: many builds as one document; `aotbuild.matrix` carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from aotbuild import probe
from aotbuild.cache.store import Store
from aotbuild.commands.build import check_writable
from aotbuild.commands.output import (
    human_bytes,
    human_seconds,
    json_option,
    make_out,
    print_json,
    print_table,
    store_option,
)
from aotbuild.commands.request import check_installed
from aotbuild.errors import BuildError, UsageError
from aotbuild.matrix.cells import read_matrix
from aotbuild.matrix.cluster import Cluster, build_on_ray
from aotbuild.matrix.environment import environment
from aotbuild.matrix.journal import DONE, Journal, Line
from aotbuild.matrix.local import build_locally
from aotbuild.matrix.run import Engine, Prospect, carry_out, prospects

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
@store_option
@json_option
def matrix(
    file: Path,
    only_plan: bool,
    engine: str,
    address: str | None,
    jobs: int | None,
    out: Path,
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
    found = prospects(cells, journal, kept, versions)
    if only_plan:
        _show_plan(found, as_json)
        return
    at_once = jobs or default_jobs()
    lines = [p.finished for p in found if p.finished is not None]
    waiting = len(found) - len(lines)
    click.echo(f"{len(lines)} of {len(found)} cells are finished", err=True)
    ended = carry_out(
        found, _engine(engine, address, at_once, versions), journal, kept, versions, out / "logs"
    )
    for number, line in enumerate(ended, 1):
        lines.append(line)
        click.echo(f"{number} of {waiting}: {_told(line)}", err=True)
    (out / "report.md").write_text("\n".join(_markdown(lines)) + "\n", encoding="utf-8")
    if as_json:
        print_json({"cells": [line.to_json() for line in lines]})
    failed = [line for line in lines if line.status != DONE]
    if failed:
        raise BuildError(
            f"{len(failed)} of {len(lines)} cells failed: {failed[0].cell.name}: "
            f"{failed[0].reason} {failed[0].log} has all of it; the same command tries them again."
        )


def _engine(name: str, address: str | None, jobs: int, versions: dict[str, str | None]) -> Engine:
    if name == "local":
        return lambda tasks: build_locally(tasks, jobs)
    cluster = Cluster(address=address, jobs=jobs, memory_bytes=MEMORY_BYTES, versions=versions)
    return lambda tasks: build_on_ray(tasks, cluster)


def default_jobs() -> int:
    """As many builds as there are cores, and memory for."""
    return max(1, min(probe.cores(), probe.available_memory_bytes() // MEMORY_BYTES))


def _show_plan(found: Sequence[Prospect], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "cell": p.cell.to_json(),
            "keys": None if p.finished is None else list(p.finished.keys),
            "seconds": p.seconds,
            "peak_bytes": p.peak_bytes,
        }
        for p in found
    ]
    if as_json:
        print_json({"cells": rows})
        return
    header = ("cell", "state", "takes about", "memory")
    print_table(
        header,
        [
            (
                p.cell.name,
                "to build" if p.finished is None else "in the store",
                "unknown" if p.seconds is None else human_seconds(p.seconds),
                "unknown" if p.peak_bytes is None else human_bytes(p.peak_bytes),
            )
            for p in found
        ],
    )


def _told(line: Line) -> str:
    if line.status != DONE:
        return f"{line.cell.name} failed: {line.reason} ({line.log})"
    return (
        f"{line.cell.name}  {human_seconds(line.seconds)}  {', '.join(k[:12] for k in line.keys)}"
    )


def _markdown(lines: Sequence[Line]) -> list[str]:
    """The report: a row for each cell."""
    rows = [
        (
            line.cell.name,
            line.status,
            human_seconds(line.seconds),
            "" if line.peak_bytes is None else human_bytes(line.peak_bytes),
            line.reason.replace("|", "\\|") or ", ".join(f"`{k[:12]}`" for k in line.keys),
        )
        for line in lines
    ]
    header = ("cell", "status", "built in", "peak memory", "keys, or why not")
    head = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return [*head, *("| " + " | ".join(row) + " |" for row in rows)]
