"""What `matrix` shows: the plan, a line as each cell ends, the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotbuild.commands.output import human_bytes, human_seconds, print_json, print_table
from aotbuild.matrix.journal import DONE, Line
from aotbuild.matrix.run import Prospect


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
