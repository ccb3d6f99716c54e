"""The commands over real artifacts: what they say of them, to people and to machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny

import aotbuild
from aotbuild.bench.pipeline import random_pipeline
from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.recipe import load_recipe


@pytest.fixture
def say(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command on the store, and give back what it printed."""

    def run(*arguments: str, code: int = 0, store: Path = tiny.store) -> str:
        assert main([*arguments, "--store", str(store)]) == code
        return capsys.readouterr().out

    return run


@pytest.fixture
def keys(tiny: Tiny) -> list[str]:
    """The keys of the artifacts, the UNet's first."""
    return [a["key"] for a in tiny.document["artifacts"]]


def test_list_has_the_objects_that_build_printed(tiny: Tiny, say: Any) -> None:
    listed = json.loads(say("list", "--json"))["artifacts"]
    built = {a["key"]: a for a in tiny.document["artifacts"]}
    assert {a["key"] for a in listed} == set(built)
    for artifact in listed:
        for name in ("component", "path", "signature", "bytes", "verified"):
            assert artifact[name] == built[artifact["key"]][name]
        assert set(artifact["seconds"]) == set(built[artifact["key"]]["seconds"])
    assert len(say("list").splitlines()) == 1 + len(built)


def test_show_has_the_manifest_when_given_the_beginning_of_a_key(say: Any, keys: list[str]) -> None:
    shown = json.loads(say("show", keys[0][:10], "--json"))
    assert shown["manifest"]["key"] == keys[0]
    assert shown["verifications"][0]["passed"] is True
    text = say("show", keys[0][:10])
    assert "UNet2DConditionModel.forward" in text
    assert "sample 2x4x32x32 float32" in text
    assert "operators" in text
    assert "example_values" in shown["manifest"]["checks"]
    assert "example_values" not in text


def test_explain_names_what_differs_when_keys_do(say: Any, keys: list[str]) -> None:
    differences = json.loads(say("explain", keys[0], keys[1], "--json"))["differences"]
    assert {"architecture.class", "architecture.method"} <= {d["path"] for d in differences}
    assert "UNet2DConditionModel -> AutoencoderKL" in say("explain", keys[0], keys[1])
    assert say("explain", keys[0], keys[0]).startswith("Nothing")


def test_plan_says_cached_when_the_store_has_it(tiny: Tiny, say: Any, keys: list[str]) -> None:
    planned = json.loads(say("plan", "tiny", "--gpu", "cpu", "--json"))
    assert planned["target"] == tiny.document["target"]
    assert {a["key"]: a["cached"] for a in planned["artifacts"]} == dict.fromkeys(keys, True)
    other = say("plan", "tiny", "--gpu", "cpu", "--resolution", "64x128")
    assert "to build" in other
    assert "in the store" not in other


def test_doctor_accepts_what_was_built_here(say: Any, keys: list[str]) -> None:
    judged = json.loads(say("doctor", "--json"))["artifacts"]
    assert {a["key"]: a["verdict"] for a in judged} == dict.fromkeys(keys, "accepted")
    assert say("doctor").count("accepted") == len(keys)


def test_verify_adds_a_record_when_the_artifact_passes(
    tiny: Tiny, say: Any, keys: list[str], tmp_path: Path
) -> None:
    store = copy_of(tiny, tmp_path, "vae.decode")
    (key,) = [e.manifest.key for e in Store(store).entries()]
    document = json.loads(say("verify", key, "--json", store=store))
    assert document["key"] == key
    assert document["record"]["passed"] is True


def test_verify_refuses_when_a_byte_was_flipped(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of(tiny, tmp_path, "vae.decode")
    (entry,) = Store(store).entries()
    package = entry.folder / "package.pt2"
    data = bytearray(package.read_bytes())
    data[len(data) // 2] ^= 1
    package.write_bytes(data)
    assert main(["verify", entry.manifest.key, "--store", str(store)]) == 1
    assert "package.pt2" in capsys.readouterr().err


def test_prune_removes_by_key_when_it_is_no_dry_run(tiny: Tiny, say: Any, tmp_path: Path) -> None:
    store = copy_of(tiny, tmp_path, "vae.decode")
    (entry,) = Store(store).entries()
    key = entry.manifest.key
    dry = json.loads(say("prune", key[:12], "--dry-run", "--json", store=store))
    assert [r["key"] for r in dry["removed"]] == [key]
    assert entry.folder.is_dir()
    assert "freed" in say("prune", key[:12], store=store)
    assert not entry.folder.exists()


def test_out_is_a_source_to_load_from_when_build_copied_there(
    tiny: Tiny, say: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    said = say("build", "tiny", "--gpu", "cpu", "--out", str(out))
    assert said.endswith(f"copied to {out}, which `aotbuild.load` takes\n")
    pipeline = random_pipeline(load_recipe("tiny"))
    loaded = aotbuild.load(pipeline, out, store=tmp_path / "libraries", fallback="error")
    assert set(loaded.metrics()) == {"unet", "vae.decode"}
    loaded.restore()


def copy_of(tiny: Tiny, folder: Path, component: str) -> Path:
    """A store that holds the artifacts of one unit alone."""
    for entry in Store(tiny.store).entries():
        if entry.manifest.component == component:
            shutil.copytree(entry.folder, folder / "copy" / entry.manifest.folder)
    return folder / "copy"
