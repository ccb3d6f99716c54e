"""`list`, `show` and `explain` over artifacts of the tests' own: what tells them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from artifacts import stage

from aotbuild.cache.manifest import Constant
from aotbuild.cache.store import Store
from aotbuild.cli import main

INT8 = Constant(
    name="original0",
    rule="int8_rows/1",
    sources=("to_q.weight",),
    shape=(4, 4),
    dtype="int8",
    stride=(4, 1),
)


def add(store: Store, **changes: Any) -> str:
    with store.staging() as root:
        return store.add(stage(root, **changes)).manifest.key


def test_list_tells_int8_and_packed_artifacts_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    expected = {
        add(store, salt="a")[:12]: "float32",
        add(store, salt="b", constants=(INT8,))[:12]: "float32 int8",
        add(store, salt="c", packed=b"x", constants=(INT8,))[:12]: "float32 int8 packed",
    }
    assert main(["list", "--store", str(store.root)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    start, end = header.index("weights"), header.index("target")
    assert {line.split()[-1]: line[start:end].strip() for line in lines} == expected


def test_explain_says_first_that_the_components_differ_when_they_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "store")
    keys = [add(store, salt="a"), add(store, salt="b", component="vae.decode")]
    assert main(["explain", *keys, "--store", str(store.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Artifacts of two components, unet and vae.decode:"
    assert lines[1].startswith("options.salt")


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_artifact_of_another_format_is_not_called_broken_when_it_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    store = Store(tmp_path / "store")
    add(store)
    (manifest,) = store.root.rglob("manifest.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"format":1', b'"format":2'))
    assert main([command, "--store", str(store.root)]) == 0
    said = capsys.readouterr().out
    assert "other format" in said
    assert "broken" not in said.replace("--broken", "")
    assert "newer than format 1, which this aotbuild reads: update aotbuild" in said
