"""Builds that repeat, run side by side, or are killed: the store stays whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import Tiny, build_tiny, run_aotbuild

from aotbuild.cache.artifact import Broken
from aotbuild.cache.store import Store

UNIT_TOML = """
format = 1
name = "decoder"
title = "tiny's VAE decoder alone"
pipeline = "StableDiffusionXLPipeline"
architecture = "tiny"
dtype = "fp32"

[components.vae]
methods = ["decode"]

[call]
resolution = "64x64"
multiple_px = 8
arguments = { guidance_scale = 1.0 }

[call.tensors]
prompt_embeds = { shape = ["batch", 77, 64] }
pooled_prompt_embeds = { shape = ["batch", 32] }
"""


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """A recipe of one's own with one small unit."""
    path = tmp_path / "decoder.toml"
    path.write_text(UNIT_TOML)
    return str(path)


def test_build_compiles_nothing_when_the_store_has_it_all(tiny: Tiny) -> None:
    again = build_tiny(tiny.store)
    assert [a["key"] for a in again["artifacts"]] == [a["key"] for a in tiny.document["artifacts"]]
    assert all(a["cached"] and a["seconds"]["compile"] is None for a in again["artifacts"])


def test_build_says_all_that_the_design_promises_when_asked_for_json(tiny: Tiny) -> None:
    assert tiny.document["target"]["device"] == "cpu"
    for artifact in tiny.document["artifacts"]:
        assert artifact["verified"]
        assert not artifact["cached"]
        assert set(artifact["seconds"]) == {"rehearse", "export", "compile", "verify"}
        assert Path(artifact["path"], "package.pt2").stat().st_size == artifact["bytes"]
    components = {a["component"] for a in tiny.document["artifacts"]}
    assert components == {"unet", "vae.decode"}


def test_four_builders_of_one_key_make_one_artifact_when_they_run_at_once(
    tmp_path: Path, decoder: str
) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "aotbuild", "build", decoder, "--gpu", "cpu", "--json"]
    builders = [
        subprocess.Popen([*command, "--store", str(store)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    documents = [json.loads(b.communicate()[0]) for b in builders]
    assert [b.returncode for b in builders] == [0, 0, 0, 0]
    keys = {a["key"] for d in documents for a in d["artifacts"]}
    assert len(keys) == 1
    assert sum(not a["cached"] for d in documents for a in d["artifacts"]) == 1
    assert len(list(Store(store).entries())) == 1


@pytest.mark.slow
def test_store_stays_whole_when_builds_are_killed_at_twenty_moments(
    tmp_path: Path, decoder: str
) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "aotbuild", "build", decoder, "--gpu", "cpu", "--store"]
    for moment in range(20):
        builder = subprocess.Popen(
            [*command, str(store)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(1 + moment)
        os.kill(builder.pid, signal.SIGKILL)
        builder.wait()
        assert not [e for e in Store(store).entries() if isinstance(e, Broken)]
        listed = run_aotbuild("list", "--store", str(store), "--json")
        assert listed.returncode == 0, listed.stderr
    done = run_aotbuild("build", decoder, "--gpu", "cpu", "--store", str(store), "--json")
    assert done.returncode == 0, done.stderr
    (entry,) = Store(store).entries()
    assert not isinstance(entry, Broken)
    Store(store).verify(entry)
    assert list((store / "staging").iterdir()) == []


def test_rebuild_has_the_same_bytes_when_folder_threads_language_and_settings_differ(
    tmp_path: Path, decoder: str
) -> None:
    first = tmp_path / "store"
    options = ("--gpu", "cpu", "--json", "--no-verify")
    done = run_aotbuild("build", decoder, *options, "--store", str(first))
    assert done.returncode == 0, done.stderr
    (artifact,) = json.loads(done.stdout)["artifacts"]
    elsewhere = tmp_path / "a folder" / "with spaces"
    shutil.copytree(first, elsewhere)
    surroundings = {
        "LANG": "de_DE.UTF-8",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    }
    command = ("verify", artifact["key"], "--rebuild", "--store", str(elsewhere), "--json")
    again = run_aotbuild(*command, env={**os.environ, **surroundings})
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rebuild"]["same"] is True
    assert json.loads(again.stdout)["rebuild"]["differences"] == []

    changed = tmp_path / "changed.toml"
    option = '"cpp.enable_floating_point_contract_flag" = "fast"'
    changed.write_text(f"{UNIT_TOML}\n[components.vae.inductor]\n{option}\n")
    differing = run_aotbuild(*command, "--recipe", str(changed))
    assert differing.returncode == 1
    rebuilt = json.loads(differing.stdout)["rebuild"]
    paths = [d[0] for d in rebuilt["differences"]]
    assert paths == ["options.cpp.enable_floating_point_contract_flag"]
    assert ".text" in rebuilt["sections"]

    changed.write_text(f"{UNIT_TOML}\n[components.vae.inductor]\nmax_fusion_size = 63\n")
    idle = run_aotbuild(*(w for w in command if w != "--json"), "--recipe", str(changed))
    assert idle.returncode == 0, idle.stderr
    assert "has the same bytes" in idle.stdout
    assert "options.max_fusion_size: (absent) -> 63" in idle.stdout
