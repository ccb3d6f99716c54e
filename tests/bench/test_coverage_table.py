"""The coverage table: what a later run replaces, what stays, and the files that are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotbuild.bench.coverage_row import Asked, Row, failed_row, parameters
from aotbuild.bench.coverage_table import CSV, MARKDOWN, Table, cells, read_table, write_table
from aotbuild.cache.constant import Constant
from aotbuild.errors import BuildError, UsageError
from aotbuild.recipe import load_recipe

ROW = Row(
    recipe="sd15",
    arch="sm_80",
    scope="full",
    quantization="none",
    unit="unet",
    module="UNet2DConditionModel",
    call="512x512, batch 1, guided",
    input="sample 2x4x64x64 float16",
    parameters=859_520_964,
    constants=686,
    kernels=160,
    attention="flash 32",
    rehearse_s=1.25,
    export_s=2.3,
    compile_s=64.0,
    package_s=0.5,
    peak_bytes=1_400_000_000,
    package_bytes=5_300_000,
    torch="2.14.1+cu130",
    diffusers="0.42.1",
    processor="a, b",
    cores="2",
    date="2026-11-30",
    key="a" * 64,
)
FAILED = failed_row(replace(ROW.asked.row(), recipe="flux"), BuildError('no\n  way | "out"'))


def constant(rule: str, shape: tuple[int, ...], dtype: str, **more: object) -> Constant:
    stride = (1,) * len(shape)
    return Constant(
        name="w", rule=rule, sources=(), shape=shape, dtype=dtype, stride=stride, **more
    )


def test_table_reads_back_the_same_when_it_is_written(tmp_path: Path) -> None:
    table = Table().put(ROW).put(FAILED)
    write_table(tmp_path, table)
    assert read_table(tmp_path) == table
    assert sorted(p.name for p in tmp_path.iterdir()) == [CSV, MARKDOWN]


def test_table_is_empty_when_nobody_wrote_one(tmp_path: Path) -> None:
    assert read_table(tmp_path) == Table()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "recipe,unit\nsd15,unet\n",
        "header,\0\n",
        "{rows}x,1\n",
        "{rows}" + "x," * 40 + "\n",
        '{rows}"open',
    ],
)
def test_table_is_refused_when_the_file_is_something_else(tmp_path: Path, text: str) -> None:
    write_table(tmp_path, Table().put(ROW))
    path = tmp_path / CSV
    path.write_text(text.replace("{rows}", path.read_text()))
    with pytest.raises(UsageError, match="name another folder with --out"):
        read_table(tmp_path)


def test_number_is_refused_when_it_is_none(tmp_path: Path) -> None:
    write_table(tmp_path, Table().put(ROW))
    path = tmp_path / CSV
    path.write_text(path.read_text().replace("859520964", "many"))
    with pytest.raises(UsageError, match="many"):
        read_table(tmp_path)


def test_row_is_replaced_when_the_same_artifact_is_put_again() -> None:
    table = Table().put(ROW).put(replace(ROW, key="b" * 64)).put(FAILED)
    again = table.put(replace(ROW, verified="sm_80 (torch 2.14.1)"))
    assert [r.key for r in again.rows] == [r.key for r in table.rows]
    assert [r.verified for r in again.rows if r.key == ROW.key] == ["sm_80 (torch 2.14.1)"]


def test_other_rows_stay_when_a_recipe_asks_for_other_artifacts() -> None:
    theirs = replace(ROW, arch="sm_90"), replace(ROW, scope="regional"), replace(ROW, recipe="if")
    table = Table().put(ROW)
    for row in theirs:
        table = table.put(row)
    assert set(table.keep(ROW.asked, ()).rows) == set(theirs)
    assert set(table.keep(ROW.asked, (ROW.key,)).rows) == {ROW, *theirs}


def test_seconds_are_those_of_the_build_when_the_artifact_is_in_the_store() -> None:
    table = Table().put(replace(ROW, recipe="sd15-inpaint"))
    cached = replace(ROW, rehearse_s=None, export_s=None, compile_s=None, package_s=None)
    known = cached.measured_as(table.measured(ROW.key))
    assert (known.recipe, known.compile_s, known.date) == ("sd15", 64.0, "2026-11-30")
    assert cached.measured_as(table.measured("c" * 64)) == cached
    assert "from the store" in cells(cached)


def test_markdown_has_a_table_for_each_target_when_rows_are_of_several(tmp_path: Path) -> None:
    write_table(tmp_path, Table().put(ROW).put(FAILED).put(replace(ROW, arch="sm_90")))
    text = (tmp_path / MARKDOWN).read_text()
    assert text.count("\n| recipe |") == 2
    assert "Measured on a, b, 2 cores, torch 2.14.1+cu130, diffusers 0.42.1, 2026-11-30." in text
    assert "| 859.5M | 160 | flash 32 | 1.2 s | 2.3 s | 64.0 s | 0.5 s |  | 1.40 GB |" in text
    assert '| flux |  |  |  | failed: no way \\| "out" |' in text
    widths = {line.replace("\\|", "").count("|") for line in text.splitlines() if "|" in line}
    assert len(widths) == 1


def test_component_shows_its_blocks_when_the_scope_is_regional() -> None:
    row = replace(ROW, scope="regional", module="BasicTransformerBlock", blocks=6)
    assert cells(row)[1] == "unet, 6 x BasicTransformerBlock"


def test_failure_is_one_line_when_the_error_has_many() -> None:
    assert failed_row(ROW, BuildError("a\n  b")).error == "a b"
    assert len(failed_row(ROW, BuildError("x" * 5000)).error) == 400
    assert failed_row(ROW, KeyError()).error == "KeyError"


def test_parameters_leave_out_scales_and_stored_values() -> None:
    found = [
        constant("tensor/1", (4, 3), "float16"),
        constant("int8_rows/1", (5, 2), "int8"),
        constant("int8_rows/1", (5, 1), "float32"),
        constant("stored/1", (1,), "float32", value=(1.0,)),
    ]
    assert parameters(found) == 22


def test_quantization_is_what_the_target_gets_when_a_recipe_says_another_for_cpus() -> None:
    sdxl = load_recipe("sdxl")
    assert Asked.of(sdxl, "sm_80", "cuda", "full").quantization == "int8dq"
    none = sdxl.override(quantization="none")
    assert Asked.of(none, "sm_80", "cuda", "full").quantization == "none"
