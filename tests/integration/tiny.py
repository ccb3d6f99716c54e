"""What the tests of the whole do with `tiny`: build it by the program, run its stock pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aotbuild
from aotbuild.bench.pipeline import PROMPT, pipeline_inputs
from aotbuild.recipe import load_recipe

RECIPE = load_recipe("tiny")


def run_aotbuild(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real program in a process of its own."""
    command = [sys.executable, "-m", "aotbuild", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def build_tiny(store: Path, *more: str) -> dict[str, Any]:
    """`aotbuild build tiny --gpu cpu --json` into `store`."""
    done = run_aotbuild("build", "tiny", "--gpu", "cpu", "--store", str(store), "--json", *more)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@dataclass(frozen=True)
class Tiny:
    """The store, and what the program said when it built it."""

    store: Path
    document: dict[str, Any]


def image(pipeline: Any, *, steps: int = 3, seed: int = 0, **changes: Any) -> Any:
    """One picture of the prompt as (H, W, 3) float32 in 0..1."""
    inputs = pipeline_inputs(RECIPE, seed=seed, steps=steps, prompt=PROMPT)
    with torch.no_grad():
        answer = pipeline(**{**inputs, "output_type": "np", **changes})
    return np.asarray(answer.images[0])


def fallbacks(loaded: aotbuild.Loaded) -> dict[str, Any]:
    """Unit -> why calls ran eagerly; empty where every call was a hit."""
    metrics = loaded.metrics()
    return {u: m["fallbacks"] for u, m in metrics.items() if m["fallbacks"]}


def hits(loaded: aotbuild.Loaded) -> int:
    """Calls that an artifact served."""
    return sum(sum(m["hits"].values()) for m in loaded.metrics().values())
