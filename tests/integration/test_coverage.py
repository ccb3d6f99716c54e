"""`bench coverage` at small size: what it writes, when a recipe fails, and after it was killed."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_builds import UNIT_TOML
from tiny import Tiny

from aotbuild.cli import main

Rows = list[dict[str, str]]


def cover(store: Path, out: Path, *recipes: str) -> list[str]:
    only = [argument for recipe in recipes for argument in ("--only", recipe)]
    return ["bench", "coverage", *only, "--gpu", "cpu", "--store", str(store), "--out", str(out)]


def table(out: Path) -> Rows:
    return list(csv.DictReader((out / "coverage.csv").read_text().splitlines()))


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """A recipe of one's own with one small unit."""
    path = tmp_path / "decoder.toml"
    path.write_text(UNIT_TOML)
    return str(path)


def test_coverage_writes_a_row_for_each_artifact_when_the_store_has_them(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*cover(tiny.store, tmp_path / "o", "tiny"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["rows"]
    rows = table(tmp_path / "o")
    assert [r["key"] for r in rows] == [r["key"] for r in said]
    assert {r["key"] for r in rows} == {a["key"] for a in tiny.document["artifacts"]}
    for row in rows:
        assert row["compile_s"] == row["error"] == row["kernels"] == ""
        assert "torch" in row["verified"]
        assert int(row["parameters"]) > 10**5
    assert "from the store" in (tmp_path / "o" / "coverage.md").read_text()


def test_coverage_goes_on_when_a_recipe_fails(
    tiny: Tiny, tmp_path: Path, decoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(decoder).write_text(UNIT_TOML.replace("pooled_prompt_embeds", "pooled"))
    assert main(cover(tiny.store, tmp_path / "o", decoder, "tiny")) == 1
    rows = table(tmp_path / "o")
    assert [r["recipe"] for r in rows if r["error"]] == ["decoder"]
    assert sum(r["recipe"] == "tiny" for r in rows) == len(tiny.document["artifacts"])
    assert "decoder failed: " in capsys.readouterr().out


def test_coverage_loses_nothing_when_it_is_killed(tiny: Tiny, tmp_path: Path, decoder: str) -> None:
    out = tmp_path / "o"
    command = [sys.executable, "-m", "aotbuild", *cover(tiny.store, out, "tiny", decoder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("compile" in line for line in running.stderr)
        running.send_signal(signal.SIGKILL)
    before = table(out)
    assert {r["recipe"] for r in before} == {"tiny"}
    assert main(cover(tiny.store, out, decoder)) == 0
    after = table(out)
    (new,) = (r for r in after if r["recipe"] == "decoder")
    assert [r for r in after if r is not new] == before
    assert float(new["compile_s"]) > 0
    assert float(new["peak_bytes"]) > 10**8
    assert main(cover(tiny.store, out, decoder)) == 0
    assert table(out) == after


def test_coverage_touches_nothing_when_the_call_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    for wrong in ("sdx", "tiny --gpu a1000", "tiny --scope all", "tiny --quant int3"):
        only, *more = wrong.split()
        assert main([*cover(tmp_path / "s", out, only), *more]) == 2
    out.mkdir()
    (out / "coverage.csv").write_text("mine\n")
    assert main(cover(tmp_path / "s", out, "tiny")) == 2
    assert "isn't a table" in capsys.readouterr().err
    assert (out / "coverage.csv").read_text() == "mine\n"
    assert not (tmp_path / "s").exists()
