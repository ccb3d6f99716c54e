"""Weights packed by a build, served by a process that has neither them nor the module."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import RECIPE

from aotbuild.bench.pipeline import random_pipeline
from aotbuild.build.request import BuildRequest
from aotbuild.build.run import build
from aotbuild.cache.store import Store

SERVE = """
import sys, aotbuild, torch
from safetensors.torch import load_file
case = load_file(sys.argv[2])
vae = aotbuild.load_component(sys.argv[1], checkpoint=None)
answer = vae.decode(case["z"], return_dict=False, generator=None)[0]
print(float((answer - case["answer"]).norm() / case["answer"].norm()))
print([m for m in ("diffusers", "torchao", "click") if m in sys.modules])
"""


def test_packed_decoder_answers_as_the_checkpoint_did_when_that_is_gone(tmp_path: Path) -> None:
    pipeline = random_pipeline(RECIPE)
    pipeline.save_pretrained(tmp_path / "checkpoint")
    request = BuildRequest(
        recipe=replace(RECIPE, components={"vae": RECIPE.components["vae"]}),
        gpu="cpu",
        resolutions=("128x128",),
        batches=(1,),
        checkpoint=str(tmp_path / "checkpoint"),
        pack_weights=True,
        store=tmp_path / "store",
    )
    (built,) = build(request)
    manifest = Store(tmp_path / "store").find(built.key).manifest
    assert built.verified
    assert manifest.packed is not None
    assert built.bytes == manifest.package.bytes + manifest.packed.file.bytes

    z = torch.randn(manifest.signature.inputs[0].shape)  # type: ignore[arg-type]
    with torch.no_grad():
        answer = pipeline.vae.decode(z, return_dict=False)[0]
    save_file({"z": z, "answer": answer.contiguous()}, tmp_path / "case.safetensors")
    shutil.rmtree(tmp_path / "checkpoint")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "store"), str(tmp_path / "case.safetensors")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    error, imported = done.stdout.split("\n")[:2]
    assert float(error) < 1e-5
    assert imported == "[]"
