from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from artifacts import stage

from aotbuild.cache.store import Store
from aotbuild.matrix.cells import Cell
from aotbuild.matrix.journal import DONE, FAILED, Journal, Line
from aotbuild.matrix.local import Outcome, Task
from aotbuild.matrix.run import carry_out, prospects

CELL = Cell(recipe="sd15", gpu="a100", resolution="512x512", batch=1, dtype=None,
            quantization=None, scope="full")  # fmt: skip
CELLS = tuple(replace(CELL, batch=n) for n in (1, 2, 3))
VERSIONS: dict[str, str | None] = {"torch": "2.13.0", "triton": None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def staging(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
    """An engine that makes whole artifacts without a compiler; of batch 3 a damaged one."""
    for task in tasks:
        task.store.mkdir(parents=True)
        folder = stage(task.store, salt=task.cell.name)
        if task.cell.batch == 3:
            (folder / "package.pt2").write_bytes(b"other")
        key = folder.name.rpartition("-")[2]
        manifest = Store(task.store).find(key).manifest if task.cell.batch != 3 else None
        full = key if manifest is None else manifest.key
        made = {"key": full, "path": str(folder), "peak_bytes": 10 * task.cell.batch}
        yield task, Outcome(artifacts=(made,), seconds=float(task.cell.batch))


def run(
    cells: Sequence[Cell],
    journal: Journal,
    store: Store,
    versions: dict[str, str | None] = VERSIONS,
) -> list[Line]:
    found = prospects(cells, journal, store, versions)
    return list(carry_out(found, staging, journal, store, Path("logs")))


def test_finished_cells_are_left_and_failed_ones_tried_again(
    journal: Journal, store: Store
) -> None:
    first = run(CELLS, journal, store)
    assert [line.status for line in first] == [DONE, DONE, FAILED]
    assert "package.pt2" in first[2].reason
    assert {e.manifest.key for e in store.entries()} == {line.keys[0] for line in first[:2]}  # type: ignore[union-attr]
    assert journal.lines() == tuple(first)

    assert [line.cell.batch for line in run(CELLS, journal, store)] == [3]


def test_cell_is_built_again_when_its_artifact_is_gone_or_a_version_is_another(
    journal: Journal, store: Store
) -> None:
    (line,) = run(CELLS[:1], journal, store)
    assert run(CELLS[:1], journal, store) == []
    assert len(run(CELLS[:1], journal, store, {**VERSIONS, "torch": "2.14.0"})) == 1
    store.prune(key=line.keys[0])
    assert len(run(CELLS[:1], journal, store)) == 1


def test_line_that_a_kill_cut_off_is_left_out_and_costs_no_other(
    journal: Journal, store: Store, tmp_path: Path
) -> None:
    run(CELLS[:1], journal, store)
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    run(CELLS[1:2], journal, store)
    assert [line.cell.batch for line in journal.lines()] == [1, 2]


def test_prospect_tells_what_such_builds_took(journal: Journal, store: Store) -> None:
    assert prospects(CELLS, journal, store, VERSIONS)[0].seconds is None
    run(CELLS[:2], journal, store)
    found = prospects(CELLS, journal, store, VERSIONS)
    assert [p.finished is not None for p in found] == [True, True, False]
    assert (found[2].seconds, found[2].peak_bytes) == (1.5, 20)
    (other,) = prospects([replace(CELL, gpu="cpu")], journal, store, VERSIONS)
    assert other.seconds is None


def test_cell_is_built_again_when_what_its_recipe_says_is_another(
    journal: Journal, store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    text = (Path(__file__).parents[2] / "recipes" / "sd15.toml").read_text()
    path.write_text(text)
    cells = [replace(CELL, recipe=str(path))]
    assert len(run(cells, journal, store)) == 1
    path.write_text(text + "# a comment\n")
    assert run(cells, journal, store) == []
    path.write_text(text.replace("fuse_qkv = true", "fuse_qkv = false"))
    assert len(run(cells, journal, store)) == 1
    path.write_text(text)
    assert run(cells, journal, store) == []
