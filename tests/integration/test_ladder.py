"""The ladder at small size: rungs in processes of their own, files, resuming, the page."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tiny import Tiny

from aotbuild.bench.ladder.rungs import NAMES
from aotbuild.cli import main

QUICK = ("fp32", "tf32", "sdpa")


def climb(out: Path, store: Path, *more: str) -> int:
    how = ["--steps", "1", "--images", "1", "--device", "cpu"]
    return main(["bench", "ladder", "tiny", *how, "--out", str(out), "--store", str(store), *more])


def test_rungs_leave_csvs_and_pictures_and_are_not_climbed_again(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    only = [word for name in QUICK for word in ("--only", name)]
    assert climb(tmp_path, tiny.store, *only, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [r["rung"] for r in rows] == list(QUICK)
    assert [r["status"] for r in rows] == ["done", "skipped", "done"]
    assert "NVIDIA" in rows[1]["reason"]
    assert rows[0]["largest_difference"] == 0
    assert 0 < rows[2]["largest_difference"] < 128
    assert rows[0]["first_image_s"] > rows[0]["first_s"] > 0
    folder = tmp_path / "tiny-128x128-b1"
    assert {p.name for p in folder.glob("*.csv")} == {f"{name}.csv" for name in QUICK}
    assert {p.name for p in folder.glob("*.jpg")} == {"fp32.jpg", "sdpa.jpg"}

    assert climb(tmp_path, tiny.store, *only, "--resume", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"] == rows
    assert said.err.count("is finished") == len(QUICK)


@pytest.mark.slow
def test_whole_ladder_ends_with_a_report_that_a_browser_shows(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert climb(tmp_path, tiny.store, "--json") == 0
    rows = {r["rung"]: r for r in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == list(NAMES)
    for row in rows.values():
        assert row["status"] == "done" or row["reason"]
    for name in ("aot", "aot-int8"):
        assert (rows[name]["fallbacks"], rows[name]["hits"] > 0) == (0, True)
    out = tmp_path / "report"
    assert main(["bench", "report", str(tmp_path), "--out", str(out)]) == 0
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium here: the page was written and not looked at")
    picture = out / "page.png"
    command = [browser, "--headless", "--no-sandbox", f"--screenshot={picture}"]
    subprocess.run([*command, (out / "report.html").as_uri()], check=True, capture_output=True)
    assert picture.stat().st_size > 10_000


def test_batch_and_device_are_refused_when_they_can_not_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = ["bench", "throughput", "tiny", "--out", str(tmp_path)]
    assert main([*bench, "--batch", "1,x"]) == 2
    assert "--batch 1,x" in capsys.readouterr().err
    assert main(["bench", "ladder", "tiny", "--resolution", "100x100"]) == 2
    assert "multiple" in capsys.readouterr().err
