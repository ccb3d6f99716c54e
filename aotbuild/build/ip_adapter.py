"""Image prompts: the layers that `pipeline.load_ip_adapter` adds to a denoiser, without weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from aotbuild.build.modules import default_dtype, empty_parameters, quiet
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import RecipeError

TOKENS = 4
"""What a plain IP-Adapter makes of an image."""


def add_ip_adapters(module: nn.Module, widths: tuple[int, ...], dtype: str) -> nn.Module:
    """Add a plain IP-Adapter for each of `widths` to `module`, in place, on the meta device.

    The layers, and what the config and the attention processors say of them, are diffusers' own.

    Args:
        module: as `build_module` makes it.
        widths: of each adapter's image embeddings, (images, width).
        dtype: the precision that the pipeline is loaded in, as torch names it.

    Raises:
        RecipeError: the class takes none.

    Source: diffusers `loaders/unet.py`, `_load_ip_adapter_weights`, 0.36 and 0.42.
    """
    if not widths:
        return module
    load: Any = getattr(module, "_load_ip_adapter_weights", None)
    if load is None:
        raise RecipeError(f"{type(module).__name__} takes no IP-Adapter: leave out ip_adapters.")
    with quiet(), default_dtype(dtype), empty_parameters(), torch.device("meta"):
        load([_weights(module, width) for width in widths], low_cpu_mem_usage=False)
    return module.eval()


def adapters_of(manifest: Manifest) -> tuple[int, ...]:
    """The widths that an artifact's recipe says for its component."""
    component = manifest.component.partition(".")[0]
    recorded = manifest.recipe.get("components", {}).get(component, {})
    return tuple(recorded.get("ip_adapters", ()))


def _weights(module: Any, width: int) -> dict[str, dict[str, torch.Tensor]]:
    """An adapter's file as far as names and shapes go; layers are numbered as in the original."""
    text = module.config.cross_attention_dim
    adapter: dict[str, torch.Tensor] = {}
    for number, path in enumerate(module.attn_processors):
        attention = module.get_submodule(path.removesuffix(".processor"))
        if path.endswith("attn2.processor"):
            shape = (attention.to_k.out_features, text)
            adapter |= {f"{number}.to_{x}_ip.weight": torch.empty(shape) for x in "kv"}
    return {
        "image_proj": {
            "proj.weight": torch.empty(TOKENS * text, width),
            "proj.bias": torch.empty(TOKENS * text),
            "norm.weight": torch.empty(text),
            "norm.bias": torch.empty(text),
        },
        "ip_adapter": adapter,
    }
