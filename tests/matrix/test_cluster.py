from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aotbuild.errors import ToolchainError
from aotbuild.matrix.cells import Cell
from aotbuild.matrix.cluster import Cluster, build_on_ray, difference
from aotbuild.matrix.environment import environment
from aotbuild.matrix.local import Task

CELL = Cell(recipe="tiny", gpu="cpu", resolution="64x64", batch=1, dtype=None,
            quantization=None, scope="full", components=("vae",))  # fmt: skip


def cluster(**versions: str | None) -> Cluster:
    return Cluster(address=None, jobs=1, memory_bytes=10**9, versions=environment() | versions)


def test_difference_names_what_a_worker_has_otherwise() -> None:
    driver = {"torch": "2.13.0", "diffusers": "0.42.1", "triton": None}
    assert difference(driver, dict(driver)) == ""
    said = difference(driver, {"torch": "2.13.0", "diffusers": "0.41.0"})
    assert "diffusers 0.41.0 (here 0.42.1)" in said
    assert "torch" not in said
    assert "diffusers missing (here 0.42.1)" in difference(driver, {"torch": "2.13.0"})


def test_ray_is_asked_for_by_name_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    task = Task(cell=CELL, store=tmp_path / "store", log=tmp_path / "log")
    with pytest.raises(ToolchainError, match=r"pip install 'aotbuild\[ray\]'"):
        list(build_on_ray([task], cluster()))


@pytest.mark.slow
def test_cell_is_refused_by_name_when_the_worker_has_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra `ray`")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of no cluster: this machine's own is used
    task = Task(cell=CELL, store=tmp_path / "store", log=tmp_path / "logs" / "cell.log")
    ((_, outcome),) = build_on_ray([task], cluster(diffusers="0.1.0"))
    assert outcome.reason.startswith("refused: the worker has diffusers ")
    assert "(here 0.1.0)" in task.log.read_text()
    assert outcome.artifacts == ()
