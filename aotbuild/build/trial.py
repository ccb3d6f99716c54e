"""What an artifact is held against: its stock module with random weights. Runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import BuildError
from aotbuild.loaders.rules import INT8_ROWS
from aotbuild.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

REFERENCE = {"float32": "float64", "bfloat16": "float32", "float16": "float32"}
"""The precision that each precision is measured against."""


def call_dtype(manifest: Manifest) -> str:
    """The floating dtype of most constants: the pipeline may cast a component (SDXL's VAE)."""
    plain = (c.dtype for c in manifest.constants if c.rule != INT8_ROWS)
    found = [dtype for dtype in plain if dtype in REFERENCE]
    return max(set(found), key=found.count) if found else manifest.precision


def stock_module(manifest: Manifest, seed: int) -> tuple[nn.Module, nn.Module]:
    """The component, and what of it was compiled: with random weights, others have none.

    In the precision that the pipeline is loaded in; for a bundle as the recipe prepares it.
    """
    from aotbuild.build.bundle_request import for_bundle
    from aotbuild.build.ip_adapter import adapters_of, add_ip_adapters
    from aotbuild.build.modules import build_module, fill_random, use_tiling
    from aotbuild.build.prepare import prepare

    whole = build_module(_config(manifest), manifest.precision)
    add_ip_adapters(whole, adapters_of(manifest), manifest.precision)
    blocks = manifest.provenance.get("blocks")
    use_tiling(whole, is_tiled(manifest))
    part = whole.get_submodule(blocks[0]) if blocks else whole
    fill_random(part, seed)
    if manifest.backend == INDUCTOR_CACHE:
        name = manifest.component.partition(".")[0]
        prepare(whole, for_bundle(Recipe.from_json(manifest.recipe).components[name]))
        whole.requires_grad_(True)
    part.to(manifest.target.device)
    return whole, part


def is_tiled(manifest: Manifest) -> bool:
    """Whether the artifact's recipe says that its component works on tiles."""
    name = manifest.component.partition(".")[0]
    return manifest.recipe.get("components", {}).get(name, {}).get("tiling") is True


def _config(manifest: Manifest) -> dict[str, Any]:
    """The config of the component that the artifact is of, or of whose blocks."""
    if manifest.scope == "full":
        return {"_class_name": manifest.module.class_name, **manifest.module.config}
    name = manifest.component.partition(".")[0]
    try:
        config: dict[str, Any] = manifest.provenance["rehearsal"]["configs"][name]
    except (KeyError, TypeError):
        raise BuildError(
            f"{manifest.key[:12]} is of blocks, and doesn't say of which {name}; only artifacts of "
            "`aotbuild build` can be verified."
        ) from None
    return config


def cast(manifest: Manifest, module: nn.Module, dtype: str) -> nn.Module:
    """`module` in `dtype`, its weights rounded to the precisions that the artifact's have."""
    import torch

    for name in (call_dtype(manifest), dtype):
        if name != manifest.precision:
            module.to(getattr(torch, name))
    return module
