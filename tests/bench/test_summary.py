"""Medians, spreads and ratios over made-up runs, and the files that are written of them."""

from __future__ import annotations

import csv
from pathlib import Path

from aotbuild.bench.report import write_csv, write_plot
from aotbuild.bench.summary import by_way, column, medians, ratios, spread
from aotbuild.bench.ways import AOTBUILD, AOTI, COMPILE, EAGER, Run


def make(way: str, first_s: float = 1.0, load_s: float = 0.0, bind_s: float = 0.0) -> Run:
    return Run(
        way=way,
        import_s=2.0,
        weights_s=0.1,
        load_s=load_s,
        bind_s=bind_s,
        first_s=first_s,
        steady_s=1.0,
        peak_bytes=10**9,
        error=1e-6,
    )


RUNS = [
    make(COMPILE, 101.0),
    make(EAGER),
    make(AOTBUILD, load_s=0.006, bind_s=0.004),
    make(AOTI, load_s=1.4, bind_s=0.1),
    make(AOTBUILD, load_s=0.008, bind_s=0.004),
    make(AOTBUILD, load_s=0.004, bind_s=0.004),
]


def test_ways_come_in_their_order_when_runs_are_interleaved() -> None:
    assert list(by_way(RUNS)) == [EAGER, COMPILE, AOTI, AOTBUILD]


def test_median_and_spread_are_those_of_the_repeats() -> None:
    ours = by_way(RUNS)[AOTBUILD]
    assert medians(ours)["load_s"] == 0.006
    assert spread(column(ours, "load_s")) == 0.004


def test_ratios_name_the_figures_when_every_way_ran() -> None:
    said = "\n".join(ratios(RUNS))
    assert "10.0 ms" in said
    assert "150 times" in said
    assert "10000 times" in said
    assert "1.000 of torch.compile's" in said
    assert "1.000 of eager's" in said


def test_ratios_are_none_when_aotbuild_did_not_run() -> None:
    assert list(ratios([make(EAGER)])) == []


def test_extra_is_not_negative_when_the_first_step_was_the_faster() -> None:
    assert make(EAGER, first_s=0.5).extra_s == 0.0


def test_csv_has_every_run_with_its_facts(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    write_csv(path, RUNS, {"torch": "2.13.0", "processor": "a, b"})
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [r["way"] for r in rows] == [r.way for r in RUNS]
    assert {r["processor"] for r in rows} == {"a, b"}
    assert float(rows[0]["first_s"]) == 101.0


def test_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "runs.png"
    write_plot(path, RUNS, "made up")
    assert path.read_bytes().startswith(b"\x89PNG")
