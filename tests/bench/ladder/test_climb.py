"""What a rung that couldn't be climbed leaves in its row."""

from __future__ import annotations

import pytest

from aotbuild.bench.ladder.climb import failed_row
from aotbuild.bench.ladder.rows import FAILED, NO_MEMORY, Row
from aotbuild.bench.process import DiedError
from aotbuild.errors import AotbuildError, BuildError, StoreError

EMPTY = Row(
    recipe="tiny", resolution="64x64", batch=1, checkpoint="random weights", device="cpu",
    steps=1, images=1, rung="aot", title="artifacts",
)  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DiedError("The process for rung aot ended with exit code -9: ", printed=""), NO_MEMORY),
        (BuildError("The build process ended with exit code -9 and no word"), NO_MEMORY),
        (BuildError("unet: it can't be exported"), FAILED),
        (StoreError("exit code -9 is a file's name here"), FAILED),
    ],
)
def test_process_that_was_killed_lacked_memory_be_it_a_rungs_or_a_builds(
    error: AotbuildError, status: str
) -> None:
    row = failed_row(EMPTY, error, "why")
    assert (row.status, row.reason) == (status, "why")
