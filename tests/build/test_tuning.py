"""Tuning tables as files; measuring itself needs the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotbuild.build.tuning import TuningTable, read_table, table_path, write_table
from aotbuild.errors import RecipeError

TABLE = TuningTable(
    format=1,
    arch="sm_80",
    gpu="NVIDIA A100-SXM4-80GB",
    torch="2.14.1+cu130",
    choices={"00ff": {"XBLOCK": 64, "num_warps": 4, "num_stages": 2}},
)


def test_table_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "mine.sm_80.tuning.json"
    write_table(path, TABLE)
    assert read_table(path) == TABLE
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_table_is_absent_when_nobody_measured(tmp_path: Path) -> None:
    assert read_table(tmp_path / "none.json") is None


def test_table_keeps_what_was_measured_before_when_more_is(tmp_path: Path) -> None:
    newer = TuningTable(format=1, arch="sm_80", gpu="A100", torch="2.14.1", choices={"1": {"X": 1}})
    assert newer.merged(TABLE).choices == {**TABLE.choices, "1": {"X": 1}}
    assert newer.merged(None) == newer


@pytest.mark.parametrize("text", ["[]", "{", '{"format": 2}', '{"format": 1, "more": 0}'])
def test_table_is_refused_when_it_is_not_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match="isn't a tuning table"):
        read_table(path)


def test_table_lies_beside_ones_own_recipe_and_else_in_the_store(tmp_path: Path) -> None:
    own = table_path(tmp_path / "mine.toml", tmp_path / "store", "mine", "sm_90")
    assert own == tmp_path / "mine.sm_90.tuning.json"
    shipped = table_path(None, tmp_path / "store", "sdxl", "sm_90")
    assert shipped == tmp_path / "store" / "tuning" / "sdxl.sm_90.tuning.json"
