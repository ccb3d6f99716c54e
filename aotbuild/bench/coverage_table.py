"""The table of `bench coverage` as files: a CSV that later runs merge into, and Markdown of it.

What a row says is `coverage_row`'s, when it is written `coverage`'s.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from aotbuild.bench.coverage_row import Asked, Row
from aotbuild.errors import UsageError

CSV, MARKDOWN = "coverage.csv", "coverage.md"
NAMES = tuple(f.name for f in fields(Row))

HEADER = (
    "recipe", "component", "call", "first input", "parameters", "kernels", "attention",
    "rehearse", "export", "compile", "package", "verify", "peak memory", "package size",
    "verified where",
)  # fmt: skip

INTRODUCTION = """\
# Coverage

What each recipe builds, at its own size, as `aotbuild bench coverage` wrote it down; `coverage.csv`
has the same rows with keys and versions. Seconds are those of one build by stage, its caches empty;
memory is the most that the process which compiled held, or the host compiler below it. "From the
store" is what was there before, built by a run that kept no times. Parameters are those that an
artifact binds: an encoder's are no part of its decoder. Attention is as it was lowered for the GPU;
on a CPU torch chooses at run time. What was built for a GPU that isn't there is verified where one
is: `aotbuild verify KEY`.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in their order: by target, then as recipes and their calls come."""

    rows: tuple[Row, ...] = ()

    def put(self, row: Row) -> Table:
        """With `row` in the place of the one of the same recipe, target and key, or added."""
        same = [(r.asked, r.key) == (row.asked, row.key) for r in self.rows]
        if any(same):
            place = same.index(True)
            return Table((*self.rows[:place], row, *self.rows[place + 1 :]))
        return Table(tuple(sorted((*self.rows, row), key=_order)))

    def keep(self, asked: Asked, keys: Iterable[str]) -> Table:
        """Without those rows of `asked` whose artifacts it doesn't ask for any more."""
        wanted = set(keys)
        return Table(tuple(r for r in self.rows if r.asked != asked or r.key in wanted))

    def measured(self, key: str) -> Row | None:
        """A row of the artifact with that key that knows what its build took, whoever asked."""
        found = (r for r in self.rows if r.key == key and r.total_s is not None and not r.error)
        return next(found, None)


def _order(row: Row) -> tuple[str, ...]:
    return (row.arch, row.scope, row.quantization, row.recipe)


def read_table(folder: Path) -> Table:
    """What earlier runs wrote there; empty where none did.

    Raises:
        UsageError: there is a `coverage.csv` that isn't such a table.
    """
    path = folder / CSV
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if tuple(reader.fieldnames or ()) != NAMES:
                raise ValueError("its columns are others")
            return Table(tuple(map(_row, reader)))
    except FileNotFoundError:
        return Table()
    except (OSError, ValueError, csv.Error) as e:
        raise UsageError(
            f"{path} isn't a table that `bench coverage` of this version wrote: {e}. Move it away, "
            "or name another folder with --out."
        ) from e


def write_table(folder: Path, table: Table) -> None:
    """Both files, each whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, NAMES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, table.rows))
    _replace(folder / CSV, text.getvalue())
    _replace(folder / MARKDOWN, markdown(table.rows))


def markdown(rows: Sequence[Row]) -> str:
    """A document with one table for each target, scope and quantization."""
    lines = [INTRODUCTION, *_measured_on(rows)]
    for arch, scope, quantization in dict.fromkeys(_order(r)[:3] for r in rows):
        mine = [r for r in rows if _order(r)[:3] == (arch, scope, quantization)]
        lines += [f"## {_title(arch, scope, quantization)}", ""]
        lines += [_line(HEADER), "|" + " --- |" * len(HEADER), *(_line(cells(r)) for r in mine)]
        lines.append("")
    return "\n".join(lines)


def cells(row: Row) -> tuple[str, ...]:
    """A row as people read it, under `HEADER`."""
    if row.error:
        failed = f"failed: {row.error}"
        return (row.recipe, row.unit, row.call, row.input, failed, *[""] * (len(HEADER) - 5))
    blocks = "" if row.blocks is None else f", {row.blocks} x {row.module}"
    return (
        row.recipe,
        f"{row.unit}{blocks}",
        row.call,
        row.input,
        _count(row.parameters),
        _text(row.kernels),
        row.attention,
        *_stages(row),
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f} GB",
        "" if row.package_bytes is None else f"{row.package_bytes / 1e6:.1f} MB",
        row.verified or "nowhere yet",
    )


def _stages(row: Row) -> tuple[str, ...]:
    if row.total_s is None:
        return ("from the store", "", "", "", "")
    stages = (row.rehearse_s, row.export_s, row.compile_s, row.package_s, row.verify_s)
    return tuple("" if s is None else f"{s:.1f} s" for s in stages)


def _count(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _title(arch: str, scope: str, quantization: str) -> str:
    weights = "" if quantization == "none" else f", {quantization}"
    return f"{arch}, {'whole components' if scope == 'full' else 'repeated blocks'}{weights}"


def _measured_on(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each machine and version, as whoever quotes seconds must say."""
    timed = [r for r in rows if r.total_s is not None and r.processor]
    for place in sorted({(r.processor, r.cores, r.torch, r.diffusers) for r in timed}):
        processor, cores, torch, diffusers = place
        dates = sorted({r.date for r in timed if place[:3] == (r.processor, r.cores, r.torch)})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        versions = f"torch {torch}, diffusers {diffusers}"
        yield f"Measured on {processor}, {cores} cores, {versions}, {when}."
        yield ""


def _line(texts: Iterable[str]) -> str:
    return "| " + " | ".join(t.replace("|", "\\|") for t in texts) + " |"


def _row(document: dict[str, str]) -> Row:
    """Of one line of the CSV.

    Raises:
        ValueError: a number that isn't one, cells too many or too few.
    """
    if None in document or None in document.values():
        raise ValueError("a line has another number of cells than the header")
    return Row(**{n: _cell(_HINTS[n], text) for n, text in document.items()})


def _cell(hint: Any, text: str) -> Any:
    if hint is str:
        return text
    kind = int if hint == (int | None) else float
    return kind(text) if text else None


_HINTS = get_type_hints(Row)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
