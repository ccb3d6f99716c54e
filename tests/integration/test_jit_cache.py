"""A JIT-cache bundle by the program itself: built, verified in a fresh process, loaded, hit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import run_aotbuild

SERVICE = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from tiny import RECIPE, fallbacks, hits, image
import aotbuild
from aotbuild.bench.pipeline import random_pipeline
pipeline = random_pipeline(RECIPE)
expected = image(pipeline)
assert "fuse_qkv_projections()" in aotbuild.load(
    pipeline, Path({store!r}), allow_jit_cache=True
).report()
pipeline.unet.fuse_qkv_projections()
assert "holds pickles" in aotbuild.load(pipeline, Path({store!r})).report()
loaded = aotbuild.load(pipeline, Path({store!r}), fallback="error", allow_jit_cache=True)
difference = abs(image(pipeline) - expected).max()
assert hits(loaded) > 0 and not fallbacks(loaded) and difference < 1e-4, loaded.report()
print(loaded.report())
loaded.restore()
assert "forward" not in vars(pipeline.unet)
"""


@pytest.mark.slow
def test_pipeline_compiles_with_hits_when_it_has_the_bundle(tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = ("--component", "unet", "--backend", "inductor-cache", "--store", str(store))
    done = run_aotbuild("build", "tiny", "--gpu", "cpu", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)["artifacts"]
    assert all(a["verified"] for a in built)

    code = SERVICE.format(here=str(Path(__file__).parent), store=str(store))
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches")}
    service = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert service.returncode == 0, service.stderr
    assert "graphs: 1 hits, 0 misses; AOTAutograd's: 1 hits, 0 misses" in service.stdout

    refused = run_aotbuild("verify", built[0]["key"], "--rebuild", "--store", str(store))
    assert refused.returncode == 2
    assert "no second build repeats to the byte" in refused.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--quant", "int8dq"), "Type --quant none"),
        (("--tune",), "--tune"),
        (("--gpu", "x86-64-v2"), "compiles for the machine that it runs on"),
    ],
)
def test_bundle_is_refused_before_the_work_when_it_can_not_be(
    tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    arguments = ("--backend", "inductor-cache", "--store", str(tmp_path / "store"), *more)
    done = run_aotbuild("build", "tiny", "--gpu", "cpu", *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not list((tmp_path / "store").rglob("manifest.json"))
