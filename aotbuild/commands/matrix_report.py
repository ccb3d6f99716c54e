"""What `matrix` shows: the plan, a line as each cell ends and what is left, the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click

from aotbuild.commands.output import human_bytes, human_seconds, print_json, print_table
from aotbuild.matrix.journal import DONE, Line
from aotbuild.matrix.run import Prospect


class Ended(Protocol):
    """Something that hears of each cell that has ended."""

    def __call__(self, line: Line) -> None:
        """Show it."""


class Pace:
    """How far a run is, in words: what is done, running and failed, and when the rest will be."""

    def __init__(self, finished: int, total: int, jobs: int) -> None:
        self._finished, self._total, self._jobs = finished, total, jobs
        self._ended, self._failed, self._begun = 0, 0, time.monotonic()

    def end(self, line: Line) -> str:
        """One more has ended."""
        self._ended += 1
        self._failed += line.status != DONE
        return self.words(time.monotonic() - self._begun)

    def words(self, elapsed_s: float) -> str:
        """ "7 of 12 done, 2 running, 1 failed, about 4 min left"."""
        left = self._total - self._finished - self._ended
        words = [f"{self._finished + self._ended - self._failed} of {self._total} done"]
        words += [f"{min(left, self._jobs)} running"] if left else []
        words += [f"{self._failed} failed"] if self._failed else []
        if left and self._ended:
            words.append(f"about {elapsed_s / self._ended * left / 60:.0f} min left")
        return ", ".join(words)


@contextmanager
def display(pace: Pace) -> Iterator[Ended]:
    """A listener for the length of a run: a live line below those of ended cells on a terminal."""
    click.echo(pace.words(0), err=True)
    if not sys.stderr.isatty():
        yield lambda line: click.echo(f"{told(line)}\n  {pace.end(line)}", err=True)
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(pace.words(0)) as status:

        def ended(line: Line) -> None:
            console.print(told(line), highlight=False, markup=False)
            status.update(pace.end(line))

        yield ended


def show_plan(found: Sequence[Prospect], as_json: bool) -> None:
    """Each cell with what is known of it."""
    rows: list[dict[str, Any]] = [
        {
            "cell": p.cell.to_json(),
            "keys": None if p.finished is None else list(p.finished.keys),
            "published": p.published,
            "seconds": p.seconds,
            "peak_bytes": p.peak_bytes,
        }
        for p in found
    ]
    if as_json:
        print_json({"cells": rows})
        return
    header = ("cell", "state", "published", "takes about", "memory")
    print_table(
        header,
        [
            (
                p.cell.name,
                "to build" if p.finished is None else "in the store",
                {None: "not asked", True: "yes", False: "no"}[p.published],
                "unknown" if p.seconds is None else human_seconds(p.seconds),
                "unknown" if p.peak_bytes is None else human_bytes(p.peak_bytes),
            )
            for p in found
        ],
    )


def told(line: Line) -> str:
    """What became of a cell, in one line."""
    if line.status != DONE:
        return f"{line.cell.name} failed: {line.reason} ({line.log})"
    return (
        f"{line.cell.name}  {human_seconds(line.seconds)}  {', '.join(k[:12] for k in line.keys)}"
    )


def markdown(lines: Sequence[Line]) -> list[str]:
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
