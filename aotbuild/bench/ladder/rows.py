"""A rung's line and its CSV: what was measured, on which machine, with which versions."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

DONE, SKIPPED, NO_MEMORY, FAILED = "done", "skipped", "out of memory", "failed"
_ENVIRONMENT = ("processor", "cores", "gpu", "torch", "diffusers", "torchao", "aotbuild")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rung's line; None where it isn't known, or doesn't apply.

    Attributes:
        recipe, resolution, batch, checkpoint, device, steps, images: the settings.
        rung, title: of the experiment.
        status: "done", "skipped", "out of memory", "failed".
        reason: why it was skipped or failed.
        import_s, weights_s: importing the libraries; making the pipeline with its weights.
        ready_s: preparing, wrapping for the compiler, or loading artifacts.
        first_s: the first image, compilation included where it is just in time.
        first_image_s: all four: from the process's start to the first image.
        latency_s: median of the later images; latency_spread_s: largest less smallest.
        iterations_per_second: denoising steps by `latency_s`.
        peak_bytes: most memory: the GPU's by torch's allocator, or the process's.
        syncs_per_step: how often a step waits for the GPU. warning: what may cause that.
        largest_difference: of a pixel from the fp32 rung's, in 1/255. mean_difference: of all.
        hits, fallbacks: calls that artifacts served, and that ran eagerly.
    """

    recipe: str
    resolution: str
    batch: int
    checkpoint: str
    device: str
    steps: int
    images: int
    rung: str
    title: str
    status: str = DONE
    reason: str = ""
    import_s: float | None = None
    weights_s: float | None = None
    ready_s: float | None = None
    first_s: float | None = None
    first_image_s: float | None = None
    latency_s: float | None = None
    latency_spread_s: float | None = None
    iterations_per_second: float | None = None
    peak_bytes: int | None = None
    syncs_per_step: float | None = None
    warning: str = ""
    largest_difference: int | None = None
    mean_difference: float | None = None
    hits: int | None = None
    fallbacks: int | None = None


def write_row(path: Path, row: Row, known: dict[str, str]) -> None:
    """A CSV of one line, with the machine and the versions; whole, or not at all."""
    temporary = path.with_suffix(".csv.new")
    names = [*(f.name for f in fields(Row)), *known]
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerow({**asdict(row), **known})
    temporary.replace(path)


def read_finished(path: Path, empty: Row, known: dict[str, str]) -> Row | None:
    """The row at `path`, where it is one of the same settings and machine, and came to an end."""
    lines = read_table(path)
    if len(lines) != 1:
        return None
    (line,) = lines
    asked = ("recipe", "resolution", "batch", "checkpoint", "device", "steps", "images", "rung")
    if any(line[name] != getattr(empty, name) for name in asked):
        return None
    if any(line.get(name) != known[name] for name in _ENVIRONMENT):
        return None
    if line["status"] not in (DONE, SKIPPED):
        return None
    return Row(**{f.name: line[f.name] for f in fields(Row)})


def read_table(path: Path) -> list[dict[str, Any]]:
    """The lines of a rung's CSV, numbers as numbers, and its `picture`; none of another CSV."""
    kinds = {f.name: str(f.type) for f in fields(Row)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, ValueError):
        return []
    if not lines or not kinds.keys() <= lines[0].keys():
        return []
    jpeg = path.with_suffix(".jpg")
    picture = str(jpeg) if jpeg.exists() else ""
    return [
        {n: _value(text, kinds.get(n, "str")) for n, text in line.items()} | {"picture": picture}
        for line in lines
    ]


def _value(text: str, kind: str) -> str | int | float | None:
    if kind.startswith("str"):
        return text
    if not text:
        return None
    return int(text) if kind.startswith("int") else float(text)
