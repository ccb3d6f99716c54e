"""`aotbuild matrix` with real builds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tiny import run_aotbuild

from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.probe import cpu_level

VAE = 'format = 1\nrecipes = ["tiny"]\ngpus = ["cpu"]\ncomponents = ["vae"]\n'
_VAE = "[components.vae]"
TWELVE = VAE.replace('["tiny"]', '["tiny", "./mine.toml"]') + (
    'resolutions = ["64x64", "64x128", "128x128"]\ndtypes = ["fp32", "bf16"]\n'
)


def write(folder: Path, text: str) -> list[str]:
    """The document, with a recipe of one's own that is `tiny` in another layout; its arguments."""
    recipe = Path(__file__).parents[2] / "recipes" / "tiny.toml"
    head, tail = recipe.read_text().replace('name = "tiny"', 'name = "mine"', 1).split(_VAE)
    mine = head + _VAE + tail.replace("channels_last", "contiguous", 1)
    (folder / "mine.toml").write_text(mine)
    (folder / "matrix.toml").write_text(text)
    return ["matrix", str(folder / "matrix.toml"), "--out", str(folder / "out"), "--jobs", "2"]


def packages(store: Path) -> dict[str, str]:
    found = (e for e in Store(store).entries() if isinstance(e, Entry))
    return {e.manifest.key: e.manifest.package.sha256 for e in found}


def test_cells_are_built_and_a_failed_one_costs_no_other(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text(
        (Path(__file__).parents[2] / "recipes" / "sd15.toml")
        .read_text()
        .replace('architecture = "', 'architecture = "./nowhere-', 1)
    )
    text = VAE.replace('"tiny"', '"tiny", "./broken.toml"') + 'resolutions = ["64x64"]\n'
    words = [*write(tmp_path, text), "--store", str(tmp_path / "store")]

    done = run_aotbuild(*words, "--json")

    assert done.returncode == 1, done.stderr
    lines: list[dict[str, Any]] = json.loads(done.stdout)["cells"]
    by_status = {line["status"]: line for line in lines}
    assert set(by_status) == {"done", "failed"}
    assert [*packages(tmp_path / "store")] == by_status["done"]["keys"]
    assert by_status["done"]["peak_bytes"] > 10**8
    assert "nowhere" in by_status["failed"]["reason"]
    assert "nowhere" in Path(by_status["failed"]["log"]).read_text()
    assert "| failed |" in (tmp_path / "out" / "report.md").read_text()

    plan = run_aotbuild(*words, "--plan", "--json")
    assert plan.returncode == 0
    states = [cell["keys"] for cell in json.loads(plan.stdout)["cells"]]
    assert states == [by_status["done"]["keys"], None]


@pytest.mark.slow
@pytest.mark.cuda_build
def test_matrix_holds_an_absent_gpu_beside_this_cpu(tmp_path: Path) -> None:
    text = VAE.replace('["cpu"]', '["cpu", "sm_80"]').replace('["vae"]', '["unet"]')
    words = write(tmp_path, text + 'dtypes = ["bf16"]\nscopes = ["regional"]\n')
    assert run_aotbuild(*words, "--store", str(tmp_path / "store")).returncode == 0
    found = [e.manifest for e in Store(tmp_path / "store").entries() if isinstance(e, Entry)]
    assert {m.target.arch for m in found} == {cpu_level(), "sm_80"}
    assert {m.scope for m in found} == {"regional"}


@pytest.mark.slow
def test_driver_goes_on_where_it_was_killed_and_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    words = [*write(one, TWELVE), "--store", str(one / "store")]
    driver = subprocess.Popen([sys.executable, "-m", "aotbuild", *words])
    journal = one / "out" / "journal.jsonl"
    while not journal.exists() or len(journal.read_text().splitlines()) < 5:
        assert driver.poll() is None
        time.sleep(0.2)
    driver.kill()
    driver.wait()
    before = len(journal.read_text().splitlines())
    assert 5 <= before < 12

    assert run_aotbuild(*words).returncode == 0
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert len(lines) == len({json.dumps(line["cell"]) for line in lines}) == 12

    assert run_aotbuild(*write(other, TWELVE), "--store", str(other / "store")).returncode == 0
    assert len(packages(one / "store")) == 12
    assert packages(one / "store") == packages(other / "store")


@pytest.mark.slow
def test_ray_gives_the_same_bytes_although_a_worker_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray`")
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    words = [*write(one, TWELVE), "--store", str(one / "store"), "--engine", "ray"]
    driver = subprocess.Popen([sys.executable, "-m", "aotbuild", *words])
    journal = one / "out" / "journal.jsonl"
    while not journal.exists() or len(journal.read_text().splitlines()) < 2:
        assert driver.poll() is None
        time.sleep(0.2)
    workers = subprocess.run(["pgrep", "-f", "ray::_built_there"], capture_output=True, text=True)
    os.kill(int(workers.stdout.split()[0]), signal.SIGKILL)
    assert driver.wait() == 0

    assert len(journal.read_text().splitlines()) == 12
    assert run_aotbuild(*write(other, TWELVE), "--store", str(other / "store")).returncode == 0
    assert len(packages(one / "store")) == 12
    assert packages(one / "store") == packages(other / "store")
