"""int8: one artifact for many weights, and the same one with a checkpoint's weights packed in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import run_aotbuild

import aotbuild
from aotbuild.bench.subject import call_of, write_checkpoint
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.verify import check_record, relative_l2, verify
from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.recipe import load_configs, load_recipe

RECIPE = """
format = 1
name = "quantized"
title = "tiny's UNet in int8"
pipeline = "StableDiffusionXLPipeline"
architecture = "tiny"
dtype = "fp32"

[components.unet]
methods = ["forward"]
memory_format = "channels_last"
fuse_qkv = true
quantization = "int8dq"
rules = { timestep = "timestep/1" }

[components.unet.int8]
min_in_features = 17
skip_layers = ["time_embedding.*", "add_embedding.*", "*.time_emb_proj"]

[call]
resolution = "64x64"
multiple_px = 8
arguments = { guidance_scale = 5.0 }

[call.tensors]
prompt_embeds = { shape = ["batch", 77, 64] }
negative_prompt_embeds = { shape = ["batch", 77, 64] }
pooled_prompt_embeds = { shape = ["batch", 32] }
negative_pooled_prompt_embeds = { shape = ["batch", 32] }
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights as diffusers lays them out."""
    folder = tmp_path_factory.mktemp("int8") / "checkpoint"
    recipe = load_recipe("tiny")
    write_checkpoint(replace(recipe, components={"unet": recipe.components["unet"]}), folder)
    return folder


@pytest.fixture(scope="module")
def built(checkpoint: Path) -> Iterator[tuple[Path, Entry]]:
    """A store with the packed int8 artifact, built by the program; its checkpoint is gone."""
    root = checkpoint.parent
    path = root / "quantized.toml"
    path.write_text(RECIPE)
    store = root / "store"
    done = run_aotbuild(
        "build", str(path), "--gpu", "cpu", "--store", str(store), "--json",
        "--checkpoint", str(checkpoint), "--pack-weights",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (artifact,) = json.loads(done.stdout)["artifacts"]
    assert artifact["verified"]
    kept = root / "kept"
    checkpoint.rename(kept)
    yield store, Store(store).find(artifact["key"])
    kept.rename(checkpoint)


def unet(seed: int = 0) -> torch.nn.Module:
    module = build_module(load_configs("tiny")["unet"], "float32")
    fill_random(module, seed)
    return module


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_artifact_passes_with_weights_it_was_not_verified_with(
    built: tuple[Path, Entry], seed: int
) -> None:
    store, entry = built
    record = verify(store, entry.manifest.key, seed=seed)
    check_record(record, "unet")
    (case,) = record["cases"]
    assert case["artifact_error"] <= 1.1 * case["eager_error"]
    assert 1e-4 < case["int8_error"] < 0.1


def test_int8_weights_stand_in_for_eagers_when_there_is_no_fallback(
    built: tuple[Path, Entry],
) -> None:
    store, entry = built
    module, call = unet(), call_of(entry)
    layers = {c.sources for c in entry.manifest.constants if c.rule == "int8_rows/1"}
    expected = sum(module.get_parameter(p).nbytes for sources in layers for p in sources)
    with torch.no_grad():
        eager = module(**call)[0]
        loaded = aotbuild.load(SimpleNamespace(unet=module), store, store=store, fallback="error")
        found = module(**call)[0]
    metrics = loaded.metrics()["unet"]
    assert metrics["freed_bytes"] == expected
    assert expected / 4 < metrics["extra_bytes"] < expected / 3
    assert relative_l2([found], [eager]) < 0.1
    with pytest.raises(aotbuild.ReleasedError, match="fallback='eager'"):
        loaded.restore()


def test_packed_weights_answer_as_the_checkpoints_own_do(built: tuple[Path, Entry]) -> None:
    store, entry = built
    call = call_of(entry)
    component = aotbuild.load_component(store, store=store)
    module = unet()
    with torch.no_grad():
        loaded = aotbuild.load(SimpleNamespace(unet=module), store, store=store)
        assert torch.equal(component(**call)[0], module(**call)[0])
    assert not loaded.metrics()["unet"]["fallbacks"]
    assert component.config.in_channels == 4
    assert component.add_embedding.linear_1.in_features == 80


def test_packed_weights_of_another_checkpoint_are_refused(
    built: tuple[Path, Entry], tmp_path: Path
) -> None:
    store, _ = built
    recipe = load_recipe("tiny")
    other = tmp_path / "other"
    write_checkpoint(
        replace(recipe, dtype="fp16", components={"unet": recipe.components["unet"]}), other
    )
    with pytest.raises(aotbuild.NoArtifactError, match="weights"):
        aotbuild.load_component(store, store=store, checkpoint=other)


@pytest.mark.parametrize("at", [0, 9, -1, 0.3, 0.7])
def test_packed_weights_with_one_byte_changed_are_refused(
    built: tuple[Path, Entry], tmp_path: Path, at: float
) -> None:
    store, entry = built
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    path = copy / entry.manifest.folder / "constants.safetensors"
    data = bytearray(path.read_bytes())
    data[int(at * len(data)) if isinstance(at, float) else at] ^= 1
    path.write_bytes(data)
    with pytest.raises(aotbuild.AotbuildError, match=r"constants\.safetensors"):
        aotbuild.load_component(copy, store=copy)


def test_packed_start_imports_nothing_that_builds_need(built: tuple[Path, Entry]) -> None:
    store, entry = built
    script = (
        "import sys, aotbuild\n"
        f"found = aotbuild.load_component({str(store)!r}, store={str(store)!r})\n"
        "print(found.report())\n"
        "heavy = {'diffusers', 'torchao', 'transformers', 'click', 'torch._inductor'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert entry.manifest.key[:12] in done.stdout
