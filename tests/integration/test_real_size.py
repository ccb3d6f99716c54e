"""int8 at real widths: what loading holds, frees and adds, measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotbuild.build import run
from aotbuild.build.request import BuildRequest
from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.recipe import Recipe, load_configs, load_recipe

pytestmark = pytest.mark.slow

MEASURE = """
import ctypes, gc, json, sys
from pathlib import Path
from types import SimpleNamespace

import torch

import aotbuild
from aotbuild.bench.subject import call_of
from aotbuild.build.modules import build_module, fill_random
from aotbuild.cache.store import Store


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


store, key, name, fallback = Path(sys.argv[1]), *sys.argv[2:]
manifest = Store(store).find(key).manifest
call = call_of(Store(store).find(key))
start = status("VmRSS")
module = build_module({"_class_name": manifest.module.class_name, **manifest.module.config},
                      manifest.precision)
fill_random(module, 0)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
before = status("VmRSS")
with torch.no_grad():
    if fallback == "none":
        module(**call)
        print(json.dumps({"weights": before - start, "peak": status("VmHWM")}))
        sys.exit()
    loaded = aotbuild.load(SimpleNamespace(**{name: module}), store, store=store,
                           fallback=fallback, self_check=False)
    after = status("VmRSS")
    module(**call)
print(json.dumps({"weights": before - start, "loaded": after - start, "peak": status("VmHWM"),
                  **loaded.metrics()[name]}))
"""


def built(recipe: Recipe, store: Path) -> Entry:
    request = BuildRequest(
        recipe=recipe,
        gpu="cpu",
        resolutions=(recipe.call.resolution,),
        batches=(1,),
        store=store,
        verify=False,
    )
    (found,) = run.build(request)
    return Store(store).find(found.key)


def measured(entry: Entry, store: Path, fallback: str) -> dict[str, Any]:
    arguments = [str(store), entry.manifest.key, entry.manifest.component, fallback]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEASURE, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_pixarts_denoiser_stays_resident_at_a_third_when_it_is_int8(tmp_path: Path) -> None:
    recipe = load_recipe("pixart-alpha").override(dtype="fp32", resolution="256x256")
    recipe = replace(recipe, components={"transformer": recipe.components["transformer"]})
    entry = built(recipe, tmp_path)
    eager = measured(entry, tmp_path, "none")
    ours = measured(entry, tmp_path, "error")
    assert ours["loaded"] <= 0.35 * eager["weights"]
    assert ours["peak"] <= 1.05 * eager["peak"]
    assert ours["hits"] == {entry.manifest.key[:12]: 1}


def test_sdxls_widths_cost_what_the_report_says_when_projections_are_fused(tmp_path: Path) -> None:
    recipe = load_recipe("sdxl")
    configs = load_configs(recipe.architecture)
    configs["unet"]["transformer_layers_per_block"] = [1, 2, 2]
    folder = tmp_path / "configs"
    folder.mkdir()
    for name, config in configs.items():
        folder.joinpath(f"{name}.json").write_text(json.dumps(config))
    recipe = replace(
        recipe.override(resolution="256x256", quantization="int8dq"),
        architecture=f"{folder}/",
        components={"unet": replace(recipe.components["unet"], cpu={})},
    )
    entry = built(recipe, tmp_path)
    rules = [c.rule for c in entry.manifest.constants]
    assert {"int8_rows/1", "concat/1", "tensor/1"} <= set(rules)
    ours = measured(entry, tmp_path, "eager")
    assert ours["extra_bytes"] > 0
    assert ours["derived_bytes"] > 0
    added = ours["loaded"] - ours["weights"]
    assert abs(added - ours["extra_bytes"]) <= 50 << 20
