"""What a recipe does to a module before export. Changes no result but by rounding."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from aotbuild.build.backends import set_backend
from aotbuild.build.fuse import fuse_projections
from aotbuild.build.modules import quiet
from aotbuild.build.preparations import NAMED
from aotbuild.build.quantize import quantize
from aotbuild.recipe import ComponentRecipe, Int8Filter


def describe(component: ComponentRecipe) -> dict[str, Any]:
    """What `prepare` does for `component`, as it counts in the key."""
    return {
        "memory_format": component.memory_format,
        "fuse_qkv": component.fuse_qkv,
        "attention": "sdpa" if component.attention == "native" else component.attention,
        "quantization": component.quantization,
        "int8": None if component.quantization == "none" else _plain(component.int8),
        "rules": dict(sorted(component.rules.items())),
        **({"ip_adapters": list(component.ip_adapters)} if component.ip_adapters else {}),
        **({"tiling": True} if component.tiling else {}),
        **({"preparations": list(component.preparations)} if component.preparations else {}),
    }


def _plain(rule: Int8Filter | None) -> dict[str, Any] | None:
    """`rule` as JSON: lists for tuples."""
    found: dict[str, Any] | None = json.loads(json.dumps(rule and asdict(rule)))
    return found


def prepare(module: nn.Module, component: ComponentRecipe, *, for_export: bool = True) -> None:
    """Apply `component`'s preparations to `module`, in place.

    Args:
        for_export: False for a module that torch.compile is to trace, see `quantize`.

    Raises:
        RecipeError: the class can't be prepared so.
    """
    with quiet(), torch.no_grad():
        if component.attention == "math":
            _use_plain_attention(module)
        set_backend(module, component.attention)
        if component.fuse_qkv:
            fuse_projections(module)
        for name in component.preparations:
            NAMED[name](module)
        quantize(module, component, for_export=for_export)
        if component.memory_format == "channels_last":
            _to_channels_last(module)


def _use_plain_attention(module: nn.Module) -> None:
    """Where all are AttnProcessor2_0; in other modules the graph is changed, see `attention`."""
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    processors = getattr(module, "attn_processors", {})
    if processors and {type(p) for p in processors.values()} == {AttnProcessor2_0}:
        swap: Any = module.set_attn_processor
        swap(AttnProcessor())


def _to_channels_last(module: nn.Module) -> None:
    for child in module.modules():
        if isinstance(child, (nn.Conv2d, nn.ConvTranspose2d)):
            weight = child.weight.detach().contiguous(memory_format=torch.channels_last)
            child.weight = nn.Parameter(weight, child.weight.requires_grad)
