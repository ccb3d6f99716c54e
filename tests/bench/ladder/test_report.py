"""The report: everything in it comes from the CSVs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from aotbuild.bench.facts import facts
from aotbuild.bench.ladder.report import CSV, PAGE, consolidated, write_report
from aotbuild.bench.ladder.rows import FAILED, SKIPPED, Row, read_finished, read_table, write_row
from aotbuild.cli import main
from aotbuild.errors import UsageError

ROW = Row(
    recipe="sd15",
    resolution="512x512",
    batch=1,
    checkpoint="random weights",
    device="cpu",
    steps=4,
    images=2,
    rung="fp32",
    title="fp32, plain attention",
    import_s=1.5,
    weights_s=0.5,
    ready_s=0.25,
    first_s=2.0,
    first_image_s=4.25,
    latency_s=3.0,
    latency_spread_s=0.125,
    iterations_per_second=4 / 3,
    peak_bytes=10**9,
    largest_difference=0,
    mean_difference=0.0,
)
KNOWN = facts()


def changed(**changes: object) -> Row:
    from dataclasses import replace

    return replace(ROW, **changes)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "sd15-512x512-b1"
    found.mkdir()
    fast = changed(rung="sdpa", title="bf16, <SDPA>", latency_s=1.5, iterations_per_second=8 / 3)
    tf32 = changed(rung="tf32", title="tf32", status=SKIPPED, reason="no GPU", latency_s=None)
    for row in (ROW, fast, tf32):
        write_row(found / f"{row.rung}.csv", row, KNOWN)
    Image.new("RGB", (8, 8)).save(found / "fp32.jpg")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    return tmp_path


def test_lines_of_all_rungs_are_joined_in_the_ladders_order(folder: Path) -> None:
    table = consolidated([folder, folder])
    assert list(table["rung"]) == ["fp32", "tf32", "sdpa"]
    assert list(table["speedup"].dropna()) == [1.0, 2.0]
    assert set(table["machine"]) == {KNOWN["processor"]}


def test_report_is_files_whose_figures_are_the_csvs(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    out.mkdir()
    published = Path(__file__).parents[3] / "docs" / "published.csv"
    files = write_report([folder], out, published)
    assert [f.name for f in files] == [CSV, "ladder.png", "first-image.png", PAGE]
    lines = list(csv.DictReader((out / CSV).read_text().splitlines()))
    assert [line["latency_s"] for line in lines] == ["3.0", "", "1.5"]
    assert all(line["torch"] == KNOWN["torch"] for line in lines)
    page = (out / PAGE).read_text()
    assert "bf16, &lt;SDPA&gt;" in page
    assert "<td>1.5</td>" in page
    assert page.count("data:image/jpeg;base64,") == 1
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page.partition("Published by others")[0]
    assert "21.66" in page
    assert "SDXL text-to-image" not in page


def test_report_is_refused_when_there_is_nothing_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="holds no CSV"):
        consolidated([tmp_path])
    assert main(["bench", "report", str(tmp_path), "--out", str(tmp_path / "o")]) == 2
    assert "bench ladder" in capsys.readouterr().err


def test_published_figures_name_their_source_and_are_numbers() -> None:
    path = Path(__file__).parents[3] / "docs" / "published.csv"
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert {line["gpu"] for line in lines} == {"A100", "V100", "T4", "RTX 3090", "RTX 4090"}
    for line in lines:
        assert line["source"].startswith("https://")
        assert line["date"]
        assert line["note"] or float(line["iterations_per_second"]) > 0


def test_rung_is_finished_when_settings_and_machine_are_the_same_alone(tmp_path: Path) -> None:
    path = tmp_path / "fp32.csv"
    assert read_finished(path, ROW, KNOWN) is None
    write_row(path, ROW, KNOWN)
    assert read_finished(path, ROW, KNOWN) == ROW
    assert read_finished(path, changed(steps=5), KNOWN) is None
    assert read_finished(path, ROW, {**KNOWN, "torch": "2.11.0"}) is None
    write_row(path, changed(status=FAILED, reason="died"), KNOWN)
    assert read_finished(path, ROW, KNOWN) is None
    path.write_text("half a li")
    assert read_finished(path, ROW, KNOWN) is None
    assert read_table(path) == []
