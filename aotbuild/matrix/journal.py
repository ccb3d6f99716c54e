"""What became of cells, a line each, appended: what a killed driver's successor goes on from."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aotbuild.canonical import parse_json
from aotbuild.matrix.cells import Cell
from aotbuild.reading import read

NAME = "journal.jsonl"
DONE, FAILED = "done", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of one cell.

    Attributes:
        status: "done" or "failed".
        versions: what decides a key beside the cell, as the builder had it: packages, the compiler,
            and "recipe", a digest over what that said.
        keys: of the artifacts. seconds: of the build, from its start to its end.
        peak_bytes: most resident memory of its processes; None where nothing was compiled.
        reason: of a failure, the last thing that was said. log: a file with all of it.
    """

    cell: Cell
    status: str
    versions: dict[str, str | None]
    keys: tuple[str, ...] = ()
    seconds: float = 0.0
    peak_bytes: int | None = None
    reason: str = ""
    log: str = ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {**asdict(self), "cell": self.cell.to_json(), "keys": list(self.keys)}


class Journal:
    """The file below `folder`; a last line that was cut off by a kill is left out and ended."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def append(self, line: Line) -> None:
        """Write `line` to the disk itself before anything else is done.

        Raises:
            OSError: it can't be written.
        """
        data = json.dumps(line.to_json(), ensure_ascii=False).encode() + b"\n"
        with self._path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> tuple[Line, ...]:
        """All whole lines, in order; what isn't one of ours is left out."""
        found = []
        for text in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                found.append(read(Line, parse_json(text), "journal"))
            except ValueError:
                continue
        return tuple(found)
