from __future__ import annotations

from dataclasses import replace

import pytest

from aotbuild.commands.matrix_report import Pace, display
from aotbuild.matrix.cells import Cell
from aotbuild.matrix.journal import DONE, FAILED, Line

CELL = Cell(recipe="sd15", gpu="a100", resolution="512x512", batch=1, dtype=None,
            quantization=None, scope="full")  # fmt: skip
LINE = Line(cell=CELL, status=DONE, versions={}, keys=("ab" * 32,), seconds=61.0)


def test_pace_tells_what_is_done_running_failed_and_left() -> None:
    pace = Pace(finished=2, total=12, jobs=4)
    assert pace.words(0) == "2 of 12 done, 4 running"
    pace.end(LINE)
    pace.end(replace(LINE, status=FAILED, reason="no"))
    assert pace.words(120) == "3 of 12 done, 4 running, 1 failed, about 8 min left"
    for _ in range(8):
        pace.end(LINE)
    assert pace.words(600) == "11 of 12 done, 1 failed"


def test_display_has_two_lines_for_each_cell_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with display(Pace(finished=0, total=1, jobs=4)) as ended:
        ended(LINE)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "0 of 1 done, 1 running"
    assert said[1].startswith("sd15 a100 512x512 batch 1  61.0 s  abababababab")
    assert said[2] == "  1 of 1 done"
