"""`prune` on the command line: how what it is asked is read, and what it says when done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from artifacts import stage

from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.commands.prune import parse_size


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    with store.staging() as root:
        store.add(stage(root))
    return store


@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_size_is_a_number_when_it_is_larger_than_any_disk(digits: int) -> None:
    assert parse_size(f"{'9' * digits}TB") > 10**digits


def test_prune_says_so_when_nothing_is_to_remove(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", "--max-size", f"{'9' * 400}GB", "--store", str(store.root)]) == 0
    assert capsys.readouterr().out == "Nothing to remove.\n"
    assert main(["prune", "--broken", "--json", "--store", str(store.root)]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] == []


def test_prune_takes_the_key_when_it_is_in_capitals(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = store.entries()
    key = entry.manifest.key[:12].upper()
    assert main(["prune", f" {key} ", "--store", str(store.root)]) == 0
    assert "freed" in capsys.readouterr().out
    assert not list(store.entries())


def test_prune_exits_2_when_the_key_is_blank(store: Store) -> None:
    assert main(["prune", "  ", "--store", str(store.root)]) == 2
    assert list(store.entries())


def test_prune_removes_nothing_when_the_key_is_unknown_and_more_is_asked(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = store.entries()
    (entry.folder / "package.pt2").unlink()
    assert main(["prune", "xyz", "--broken", "--store", str(store.root)]) == 2
    assert "xyz" in capsys.readouterr().err
    assert entry.folder.is_dir()
