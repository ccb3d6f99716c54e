"""How commands write: one JSON document, or tables for people; what is written is theirs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from aotbuild.errors import UsageError
from aotbuild.probe import default_store

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """`--json`: print one document on stdout, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def store_option(command: Command) -> Command:
    """`--store DIR`, a `Path`; the default store where it isn't given."""
    return click.option(
        "--store",
        type=click.Path(file_okay=False, path_type=Path),
        default=default_store,
        help="Folder of artifacts.  [default: $AOTBUILD_STORE or ~/.cache/aotbuild]",
    )(command)


def make_out(folder: Path) -> Path:
    """The folder of `--out`, made before the work, so that none is done in vain.

    Raises:
        UsageError: it isn't a folder, or can't be written.
    """
    folder = folder.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as e:
        raise UsageError(
            f"--out {folder} can't be written: {e.strerror or e} ({e.filename or folder}). "
            "Name a folder that can."
        ) from e


def print_json(document: Any) -> None:
    """`document` on stdout, indented, keys in their own order."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table with left-aligned columns, as wide as their widest cell; no trailing spaces."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def human_bytes(count: int) -> str:
    """ "1.3 MB", in powers of ten as file managers write it."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """ "48.2 s", "12.3 ms", "55 us": three figures, whatever the scale."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
    raise AssertionError
