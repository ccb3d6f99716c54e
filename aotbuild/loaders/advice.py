"""The build command that would cover a call which no artifact covers. Builds nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aotbuild.cache.manifest import Manifest
from aotbuild.cache.signature import parse_extent
from aotbuild.loaders.rules import INT8_ROWS


def build_command(manifests: Sequence[Manifest], call: dict[str, Any]) -> str:
    """`aotbuild build ...` for a call like `call`, read off an artifact that serves its unit."""
    manifest = manifests[0]
    gpu = "cpu" if manifest.target.device == "cpu" else manifest.target.arch
    words = ["aotbuild build", str(manifest.recipe.get("name", "RECIPE")), "--gpu", gpu]
    if (dtype := manifest.recipe.get("dtype")) is not None:
        words += ["--dtype", str(dtype)]
    if any(c.rule == INT8_ROWS for c in manifest.constants):
        words += ["--quant", "int8dq"]
    if manifest.packed is not None:
        words += ["--checkpoint", "FOLDER", "--pack-weights"]
    if manifest.scope != "full":  # a block's call doesn't tell the size of the image
        return " ".join([*words, "--scope", "regional", "--resolution", "WIDTHxHEIGHT"])
    return " ".join(words + _size(manifest, call))


def _size(manifest: Manifest, call: dict[str, Any]) -> list[str]:
    """`--resolution` and `--batch`, in the proportion that the artifact has to its own recipe."""
    spec = manifest.signature.inputs[0]
    tensor, recipe_call = call.get(spec.path), manifest.recipe.get("call")
    if not isinstance(tensor, Tensor) or not isinstance(recipe_call, dict) or tensor.dim() < 3:
        return []
    own = re.fullmatch(r"(\d+)x(\d+)", str(recipe_call.get("resolution")))
    if own is None:
        return []
    width, height, batch = int(own[1]), int(own[2]), recipe_call.get("batch", 1)
    factor = _factor(spec.shape[-1], width) or _factor(spec.shape[-2], height) or 8
    size = f"{tensor.shape[-1] * factor}x{tensor.shape[-2] * factor}"
    per_image = _factor(batch, spec.shape[0]) or 1
    return ["--resolution", size, "--batch", str(max(1, tensor.shape[0] // per_image))]


def _factor(small: int | str, large: int | str) -> int | None:
    """How often `small` goes into `large`, where both are numbers and it does."""
    try:
        (a, b), (c, d) = parse_extent(small), parse_extent(large)
    except ValueError:
        return None
    return c // a if b is d is None and a and c % a == 0 and c >= a else None
