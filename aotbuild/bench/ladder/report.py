"""`bench report`: the ladder's CSVs as one table, two plots and a page; measures nothing.

Needs pandas, seaborn and matplotlib, of the extra `bench`.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aotbuild.bench.ladder.rows import DONE, read_table
from aotbuild.errors import UsageError

CSV, PAGE, LADDER, STARTS = "report.csv", "report.html", "ladder.png", "first-image.png"
PARTS = {
    "import_s": "imports",
    "weights_s": "weights",
    "ready_s": "prepare, or load",
    "first_s": "first image, compiled on the way",
}
_GROUP = ["machine", "recipe", "resolution", "batch", "steps"]
_SHOWN = (
    *("title", "status", "latency_s", "latency_spread_s", "iterations_per_second", "speedup"),
    *("first_image_s", "peak_bytes", "largest_difference", "mean_difference"),
    *("syncs_per_step", "warning", "reason"),
)


def write_report(folders: Sequence[Path], out: Path, published: Path | None) -> list[Path]:
    """The consolidated CSV, the plots and the page, into `out`.

    Args:
        folders: of `bench ladder` and `bench throughput`.
        published: a CSV of others' figures, set beside those of the same recipe and batch.

    Returns:
        The files.

    Raises:
        UsageError: a folder without a ladder's CSVs, or `published` isn't such a file.
    """
    table = consolidated(folders)
    table.drop(columns=["picture"]).to_csv(out / CSV, index=False)
    done = table[table["status"] == DONE]
    plots = []
    if len(done):
        _plot_ladder(done, out / LADDER)
        _plot_starts(done, out / STARTS)
        plots = [out / LADDER, out / STARTS]
    others = None if published is None else _published(published, done)
    (out / PAGE).write_text(_page(table, plots, others), encoding="utf-8")
    return [out / CSV, *plots, out / PAGE]


def consolidated(folders: Iterable[Path]) -> Any:
    """Every rung's line as one pandas table.

    Added: `machine`, the GPU or the processor; `speedup`, over the first rung that was run of the
    same machine, recipe, size and steps; `picture`, the path of its JPEG.

    Raises:
        UsageError: a folder without a ladder's CSVs.
    """
    import pandas

    frames = []
    for folder in folders:
        found = [read_table(path) for path in sorted(folder.rglob("*.csv"))]
        lines = [line for table in found for line in table]
        if not lines:
            raise UsageError(
                f"{folder} holds no CSV of `aotbuild bench ladder` or `throughput`: name the "
                "folder that was their --out."
            )
        frames.append(pandas.DataFrame(lines))
    table = pandas.concat(frames, ignore_index=True).drop_duplicates()
    order = table["rung"].map(_rank)
    table = table.assign(order=order).sort_values([*_GROUP[1:], "order"]).drop(columns="order")
    table.insert(
        0, "machine", [g or p for g, p in zip(table["gpu"], table["processor"], strict=True)]
    )
    first = table[table["status"] == DONE].groupby(_GROUP)["latency_s"].first()
    base = [first.get(key) for key in zip(*(table[n] for n in _GROUP), strict=True)]
    table.insert(
        len(_GROUP),
        "speedup",
        [b / x if b else None for b, x in zip(base, table["latency_s"], strict=True)],
    )
    return table


def _rank(rung: str) -> int:
    from aotbuild.bench.ladder.rungs import NAMES

    return NAMES.index(rung) if rung in NAMES else len(NAMES)


def _label(line: Any) -> str:
    """What tells a ladder from others, and its rung."""
    return f"{line.recipe} {line.resolution} b{line.batch}: {line.title}"


def _plot_ladder(done: Any, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import seaborn
    from matplotlib import pyplot

    data = done.assign(label=[_label(line) for line in done.itertuples()])
    figure, axes = pyplot.subplots(figsize=(10, 0.4 * len(data) + 1.4))
    seaborn.barplot(data=data, y="label", x="speedup", hue="machine", ax=axes)
    axes.set(xlabel="images per second, over the first rung's", ylabel="")
    for bars in axes.containers:
        axes.bar_label(bars, fmt="%.2f", padding=3)
    _save(figure, path)


def _plot_starts(done: Any, path: Path) -> None:
    from matplotlib import pyplot

    labels = [_label(line) for line in done.itertuples()][::-1]
    figure, axes = pyplot.subplots(figsize=(10, 0.4 * len(labels) + 1.4))
    left = [0.0] * len(labels)
    for part, title in PARTS.items():
        widths = list(done[part])[::-1]
        axes.barh(labels, widths, left=left, label=title)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds from the process's start to the first image")
    axes.legend(fontsize="small")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _published(path: Path, done: Any) -> Any:
    """Others' figures for what was measured here, by recipe and batch; all where none match."""
    import pandas

    try:
        table = pandas.read_csv(path, keep_default_na=False)
        mine = set(zip(done["recipe"], done["batch"].astype(str), strict=True))
        keys = zip(table["recipe"], table["batch"].astype(str), strict=True)
        chosen = table[[key in mine for key in keys]]
    except (OSError, ValueError, KeyError) as e:
        raise UsageError(
            f"--against {path} can't be read as a table with columns recipe and batch: {e}. "
            "docs/published.csv is one."
        ) from e
    return chosen if len(chosen) else table


def _page(table: Any, plots: Sequence[Path], others: Any) -> str:
    """One file with everything inside: tables, plots and pictures."""
    parts = ["<h1>aotbuild bench report</h1>"]
    for key, lines in table.groupby(_GROUP, sort=False):
        machine, recipe, resolution, batch, steps = key
        first = lines.iloc[0]
        versions = f"torch {first['torch']}, diffusers {first['diffusers']}, {first['date']}"
        parts.append(f"<h2>{_text(recipe)} {_text(resolution)}, batch {batch}, {steps} steps</h2>")
        parts.append(f"<p>{_text(machine)}; {_text(versions)}; {_text(first['checkpoint'])}</p>")
        parts.append(_table(lines, [n for n in _SHOWN if lines[n].notna().any()]))
        pictures = [line for line in lines.itertuples() if line.picture]
        figures = "".join(
            f"<figure><img src='{_inline(Path(line.picture), 'jpeg')}' alt=''>"
            f"<figcaption>{_text(line.title)}</figcaption></figure>"
            for line in pictures
        )
        parts.append(f"<div class='pictures'>{figures}</div>")
    parts += [f"<img class='plot' src='{_inline(p, 'png')}' alt='{p.stem}'>" for p in plots]
    if others is not None:
        parts.append("<h2>Published by others, on their machines</h2>")
        parts.append(_table(others, list(others.columns)))
    return _FRAME.format(body="\n".join(parts))


def _table(lines: Any, names: Sequence[str]) -> str:
    head = "".join(f"<th>{_text(n.removesuffix('_s').replace('_', ' '))}</th>" for n in names)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_text(_cell(line[n]))}</td>" for n in names) + "</tr>"
        for _, line in lines.iterrows()
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _text(value: object) -> str:
    return html.escape(str(value))


def _inline(path: Path, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


_FRAME = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>aotbuild bench report</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; max-width: 80em }}
table {{ border-collapse: collapse }}
td, th {{ border: 1px solid #ccc; padding: .2em .5em; text-align: left }}
.pictures {{ display: flex; flex-wrap: wrap; gap: 1em }}
figure {{ margin: 1em 0 }} figure img {{ max-width: 16em }}
.plot {{ max-width: 100%; display: block }}
</style>
<body>
{body}
</body></html>
"""
