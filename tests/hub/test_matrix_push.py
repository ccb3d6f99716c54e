"""`aotbuild matrix --push` and `--against`, of cells that are built already."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from artifacts import CPU, stage
from hub_state import SmallHub

from aotbuild.cache.artifact import Entry
from aotbuild.cache.collection import INDEX, Index, describe_entry
from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.matrix.cells import read_matrix
from aotbuild.matrix.environment import environment, recipe_digest
from aotbuild.matrix.journal import DONE, Journal, Line
from aotbuild.matrix.published import is_published

NAME = "org/sd15-aot"
DOCUMENT = """
format = 1
recipes = ["sd15"]
gpus = ["x86-64-v3"]
resolutions = ["512x512"]
batches = [1, 4]
dtypes = ["fp32"]
"""


def add(store: Store, batch: int) -> Entry:
    call = {"resolution": "512x512", "batch": batch}
    recipe = {"name": "sd15", "dtype": "fp32", "call": call}
    with store.staging() as root:
        return store.add(stage(root, salt=str(batch), recipe=recipe, target=CPU))


@pytest.fixture
def built(tmp_path: Path) -> tuple[list[str], list[Entry]]:
    """The command's words, and the artifacts of both cells, which the journal has as done."""
    document, out, store = tmp_path / "matrix.toml", tmp_path / "out", Store(tmp_path / "store")
    document.write_text(DOCUMENT)
    out.mkdir()
    entries = [add(store, batch) for batch in (1, 4)]
    for cell, entry in zip(read_matrix(document), entries, strict=True):
        keys = (entry.manifest.key,)
        versions = {**environment(), "recipe": recipe_digest(cell.recipe)}
        Journal(out).append(Line(cell=cell, status=DONE, versions=versions, keys=keys))
    words = ["matrix", str(document), "--out", str(out), "--store", str(store.root)]
    return words, entries


def test_finished_cells_are_published_once(
    small_hub: SmallHub, built: tuple[list[str], list[Entry]]
) -> None:
    words, entries = built
    assert main([*words, "--push", NAME]) == 0
    repo = small_hub.repos[NAME]
    index = Index.from_bytes(repo.commits[repo.head][INDEX])
    assert {i.key for i in index.items} == {e.manifest.key for e in entries}
    head = repo.head
    assert main([*words, "--push", NAME]) == 0
    assert repo.head == head


def test_builds_count_and_the_exit_code_is_1_when_publishing_fails(
    small_hub: SmallHub,
    built: tuple[list[str], list[Entry]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, _ = built
    small_hub.tokens.clear()
    assert main([*words, "--push", NAME]) == 1
    said = capsys.readouterr().err
    assert "2 of 2 done" in said
    assert "All cells are built, and 1 times publishing failed" in said


def test_plan_asks_the_collection_that_is_named(
    small_hub: SmallHub,
    built: tuple[list[str], list[Entry]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, _ = built
    assert main([*words, "--plan", "--against", NAME]) == 2
    assert "no repository" in capsys.readouterr().err
    assert main([*words, "--plan", "--push", NAME, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [c["published"] for c in cells] == [False, False]
    assert all(c["keys"] for c in cells)


def test_cell_is_published_for_its_own_size_and_versions_alone(
    built: tuple[list[str], list[Entry]], tmp_path: Path
) -> None:
    first, second = (
        replace(c, components=("unet",)) for c in read_matrix(tmp_path / "matrix.toml")
    )
    item = describe_entry(built[1][0])
    versions = {"torch": CPU.torch, "diffusers": item.versions.get("diffusers"), "triton": None}
    assert is_published(first, [item], versions)
    assert not is_published(second, [item], versions)
    assert not is_published(replace(first, components=("unet", "vae")), [item], versions)
    assert not is_published(replace(first, components=()), [item], versions)
    assert not is_published(replace(first, gpu="a100"), [item], versions)
    assert not is_published(replace(first, dtype="bf16"), [item], versions)
    assert not is_published(first, [item], {**versions, "torch": "2.14.0"})
    assert not is_published(first, [item], {**versions, "diffusers": "0.1"})
    assert not is_published(first, [], versions)
