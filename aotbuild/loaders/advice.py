"""What would cover a call that no artifact covers, as a command to type. Builds nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from aotbuild.cache.manifest import Manifest
from aotbuild.cache.signature import parse_extent
from aotbuild.loaders.rules import INT8_ROWS


def advise(manifests: Sequence[Manifest], call: dict[str, Any]) -> str:
    """How to cover a call like `call`, read off an artifact that serves its unit."""
    manifest = manifests[0]
    if manifest.scope != "full":  # a block's call doesn't tell the size of the image
        words = [*_command(manifest), "--scope", "regional", "--resolution", "WIDTHxHEIGHT"]
        return f"To cover such calls: {' '.join(words)}"
    size, step = _size(manifest, call), _step(manifest)
    if size and any(n % step for n in size[:2]):
        return f"No build covers such calls: this recipe's sizes are multiples of {step} pixels."
    return f"To cover such calls: {' '.join(_command(manifest) + _changes(manifest, size))}"


def range_of(manifest: Manifest) -> str:
    """ ", for 512x512 to 768x768 in steps of 64 pixels", of an artifact for a range; else ""."""
    dynamic = _table(manifest.provenance.get("rehearsal")).get("dynamic")
    if not isinstance(dynamic, list | tuple) or len(dynamic) != 2:
        return ""
    low, high = (str(size)[:20] for size in dynamic)
    return f", for {low} to {high} in steps of {_step(manifest)} pixels"


def _command(manifest: Manifest) -> list[str]:
    gpu = "cpu" if manifest.target.device == "cpu" else manifest.target.arch
    words = ["aotbuild build", str(manifest.recipe.get("name", "RECIPE")), "--gpu", gpu]
    if (dtype := manifest.recipe.get("dtype")) is not None:
        words += ["--dtype", str(dtype)]
    if any(c.rule == INT8_ROWS for c in manifest.constants):
        words += ["--quant", "int8dq"]
    if manifest.packed is not None:
        words += ["--checkpoint", "FOLDER", "--pack-weights"]
    return words


def _changes(manifest: Manifest, size: tuple[int, int, int] | None) -> list[str]:
    """`--resolution` and `--batch`; where the artifact has these already, the other variants."""
    if size is None:
        return []
    width, height, batch = size
    recipe_call = _table(manifest.recipe.get("call"))
    variants = _table(recipe_call.get("variants")).values()
    same = (recipe_call.get("resolution"), recipe_call.get("batch", 1)) == (
        f"{width}x{height}",
        batch,
    )
    others = same and any(_table(v).get("optional") is True for v in variants)
    words = ["--resolution", f"{width}x{height}", "--batch", str(batch)]
    return words + (["--variant", "all"] if others else [])


def _size(manifest: Manifest, call: dict[str, Any]) -> tuple[int, int, int] | None:
    """Width, height and batch, in the proportion that the artifact has to its own recipe."""
    spec = manifest.signature.inputs[0]
    tensor, recipe_call = call.get(spec.path), manifest.recipe.get("call")
    if not isinstance(tensor, Tensor) or not isinstance(recipe_call, dict) or tensor.dim() < 3:
        return None
    own = re.fullmatch(r"(\d+)x(\d+)", str(recipe_call.get("resolution")))
    if own is None:
        return None
    width, height, batch = int(own[1]), int(own[2]), recipe_call.get("batch", 1)
    factor = (
        _moving_factor(manifest)
        or _factor(spec.shape[-1], width)
        or _factor(spec.shape[-2], height)
        or 8
    )
    per_image = _factor(batch, spec.shape[0]) or 1
    count = max(1, tensor.shape[0] // per_image)
    return tensor.shape[-1] * factor, tensor.shape[-2] * factor, count


def _moving_factor(manifest: Manifest) -> int | None:
    """Pixels for each element along a width that moves in the recipe's steps."""
    factor, symbol = parse_extent(manifest.signature.inputs[0].shape[-1])
    step = _step(manifest)
    return step // factor if symbol == "w" and step % factor == 0 else None


def _step(manifest: Manifest) -> int:
    step = _table(manifest.recipe.get("call")).get("multiple_px")
    return step if type(step) is int and step > 0 else 1


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _factor(small: int | str, large: int | str) -> int | None:
    """How often `small` goes into `large`, where both are numbers and it does."""
    try:
        (a, b), (c, d) = parse_extent(small), parse_extent(large)
    except ValueError:
        return None
    return c // a if b is d is None and a and c % a == 0 and c >= a else None
