"""The measurements at small size: that they run, and that what they say is about what ran."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image
from tiny import Tiny

from aotbuild.bench.ways import AOTBUILD, AOTI, EAGER
from aotbuild.bench.whole_ways import NO_GC
from aotbuild.cli import main


def test_demo_writes_picture_and_table_when_run(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--no-compile", "--out", str(out), "--store", str(tiny.store)]) == 0
    said = capsys.readouterr().out
    assert "load and bind" in said
    assert "unet: 48 calls from the artifact, 0 eager" in said
    with Image.open(out / "demo.png") as sheet:
        assert sheet.width > 3 * 128


def test_cold_start_measures_each_way_in_a_process_of_its_own(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = (EAGER, AOTI, AOTBUILD)
    only = [argument for way in ways for argument in ("--only", way)]
    options = ["--repeats", "1", "--steps", "1", "--out", str(tmp_path), "--json"]
    assert main(["bench", "cold-start", "tiny", *only, *options, "--store", str(tiny.store)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [r["way"] for r in document["runs"]] == list(ways)
    for run in document["runs"]:
        assert run["error"] < 1e-4
        assert run["peak_bytes"] > 10**8
        assert run["import_s"] > 0
    (path,) = tmp_path.glob("*.csv")
    assert len(list(csv.DictReader(path.read_text().splitlines()))) == len(ways)
    assert len(list(tmp_path.glob("*.png"))) == 1
    assert not list(tmp_path.glob("work-*"))


def test_whole_cold_start_accounts_for_all_time_up_to_the_first_image(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ["--whole", "--only", EAGER, "--only", AOTBUILD]
    options = ["--repeats", "1", "--steps", "1", "--out", str(tmp_path), "--json"]
    assert main(["bench", "cold-start", "tiny", *only, *options, "--store", str(tiny.store)]) == 0
    eager, ours = json.loads(capsys.readouterr().out)["runs"]
    parts = ("interpreter", "torch", "diffusers", "aotbuild", "weights", "load", "bind")
    for run in (eager, ours):
        summed = sum(run[f"{p}_s"] for p in (*parts, "prompt", "step", "decode", "rest"))
        assert summed == pytest.approx(run["total_s"])
        assert all(run[f"{p}_s"] > 0 for p in ("interpreter", "torch", "diffusers", "weights"))
        assert 0 < run["rest_s"] < run["torch_s"]
        assert run["difference"] <= 1
    assert eager["aotbuild_s"] == eager["load_s"] == eager["bind_s"] == 0
    assert min(ours[f"{p}_s"] for p in parts) > 0
    (path,) = tmp_path.glob("*-whole.csv")
    assert len(list(csv.DictReader(path.read_text().splitlines()))) == 2


def test_whole_cold_start_is_refused_for_a_way_that_has_no_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "cold-start", "tiny", "--out", str(tmp_path), "--only"]
    assert main([*command, AOTI, "--whole"]) == 2
    assert "leave --whole out" in capsys.readouterr().err
    assert main([*command, NO_GC]) == 2
    assert "add --whole" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_dispatch_tells_the_guard_from_the_run(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "dispatch", "--calls", "10", "--json", "--store", str(tiny.store)]) == 0
    found = json.loads(capsys.readouterr().out)["tiny"]
    assert found["calls"] == 10
    assert 0 < found["guard_us"] < found["run_us"]
    assert found["constants"] > 100
