"""Cold-start runs as files: a CSV with every run and its machine, and a plot of the medians."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from aotbuild.bench.summary import by_way, column, medians
from aotbuild.bench.ways import Run
from aotbuild.bench.whole_ways import Whole

PARTS = ("import_s", "weights_s", "load_s", "bind_s")
"""What is stacked before the first step."""


def write_csv(path: Path, runs: Sequence[Run | Whole], facts: Mapping[str, str]) -> None:
    """One line a run; `facts` (machine, versions, shapes) are repeated in each."""
    names = [*(f.name for f in fields(runs[0])), *facts]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({**asdict(run), **facts} for run in runs)


def write_plot(path: Path, runs: Sequence[Run], title: str) -> None:
    """Left: time to the first answer by part. Right: what it costs beyond a steady step, log scale.

    Needs matplotlib, of the extra `bench`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grouped = by_way(runs)
    figure, (whole, extra) = pyplot.subplots(1, 2, figsize=(12, 0.55 * len(grouped) + 1.8))
    names = list(grouped)[::-1]
    left = [0.0] * len(names)
    tables = {way: medians(mine) for way, mine in grouped.items()}
    for part in (*PARTS, "first_s"):
        widths = [tables[way][part] for way in names]
        whole.barh(names, widths, left=left, label=part.removesuffix("_s"))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    whole.set_xlabel("seconds to the first answer (medians)")
    whole.legend(fontsize="small")
    for way in names:
        values = [max(v, 1e-4) for v in column(grouped[way], "extra_s")]
        extra.plot(values, [way] * len(values), "o", alpha=0.5, color="tab:blue")
        extra.plot([statistics.median(values)], [way], "|", markersize=16, color="black")
    extra.set_xscale("log")
    extra.set_xlabel("load + bind + first step beyond a steady one, seconds (every run)")
    extra.set_ylim(whole.get_ylim())
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
