"""Which attention kernel torch takes on a GPU, and why not another. Pure; asks no device.

Source: `select_sdp_backend` and its filters in
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp;
the same order in torch 2.11 to 2.14. What differs is how wide a head cuDNN takes, and that follows
from cuDNN's version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from aotbuild.gpus import Gpu

Kind = Literal["cudnn", "flash", "efficient"]
Extent = int | torch.SymInt

_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What the choice depends on, of one call.

    Attributes:
        dtype: of query, key and value.
        query: (B, H, L, E).
        key: (B, H, S, E).
        value: (B, H, S, Ev).
        mask: its shape; None where there is none.
        dense: the last dimension of query, key and value is contiguous.
        causal: the call's `is_causal`.
        dropout: the call's `dropout_p`.
        grouped: the call's `enable_gqa`.
    """

    dtype: torch.dtype
    query: tuple[Extent, ...]
    key: tuple[Extent, ...]
    value: tuple[Extent, ...]
    mask: tuple[Extent, ...] | None = None
    dense: bool = True
    causal: bool = False
    dropout: float = 0.0
    grouped: bool = False


def refusals(call: Attention, gpu: Gpu, cudnn: int | None) -> dict[Kind, str | None]:
    """Each kernel in the order in which torch tries them: None, or why it doesn't take the call.

    Args:
        call: shapes may be symbolic; what isn't known for all of them counts as no.
        gpu: the one that is built for.
        cudnn: cuDNN's version as torch gives it, 91900 for 9.19.
    """
    answers: dict[Kind, str | None] = {}
    shared = _shared_refusal(call)
    if gpu.major in (9, 10) and cudnn is not None and cudnn > 91500:
        answers["cudnn"] = shared or _cudnn_refusal(call, gpu, cudnn)
    answers["flash"] = shared or _flash_refusal(call, gpu)
    answers["efficient"] = shared or _efficient_refusal(call, gpu)
    return answers


def _shared_refusal(call: Attention) -> str | None:
    if any(len(shape) != 4 for shape in (call.query, call.key, call.value)):
        return "query, key and value must have four dimensions"
    if not same(call.query[0], call.key[0], call.value[0]):
        return "query, key and value differ in batch"
    if call.grouped:
        if not same(call.key[1], call.value[1]) or not _multiple(call.query[1], call.key[1]):
            return "heads of key and value don't divide those of query"
    elif not same(call.query[1], call.key[1], call.value[1]):
        return "query, key and value differ in heads"
    if not call.dense:
        return "the last dimension of query, key or value isn't contiguous"
    if call.causal and call.mask is not None:
        return "a mask beside is_causal"
    if call.dropout:
        return "dropout outside training"
    return None


def _cudnn_refusal(call: Attention, gpu: Gpu, cudnn: int) -> str | None:
    widths = (call.query[3], call.key[3], call.value[3])
    limit = 256 if cudnn > 92200 or (gpu.major == 9 and cudnn < 92000) else 128
    if call.dtype not in _HALF:
        return f"{call.dtype}, where float16 and bfloat16 are taken"
    if not _at_most(limit, *widths) or not all(_multiple(w, 8) for w in widths):
        return f"head widths {_text(widths)} aren't multiples of 8 up to {limit}"
    if not statically_known_true(call.key[2] != 1):
        return "a key of length 1"
    if call.mask is not None and not _mask_fits(call, call.mask):
        return f"a mask of shape {_text(call.mask)}"
    return None


def _flash_refusal(call: Attention, gpu: Gpu) -> str | None:
    if gpu.major < 8:
        return f"{gpu.arch}, where sm_80 is the first"
    if call.mask is not None:
        return "a mask"
    if call.dtype not in _HALF:
        return f"{call.dtype}, where float16 and bfloat16 are taken"
    widths = (call.query[3], call.key[3], call.value[3])
    if not same(*widths) or not _at_most(_FLASH_HEAD_MAX, *widths):
        return f"head widths {_text(widths)} aren't one up to {_FLASH_HEAD_MAX}"
    if call.causal and not same(call.query[2], call.key[2]):
        return "is_causal where query and key differ in length"
    return None


def _efficient_refusal(call: Attention, gpu: Gpu) -> str | None:
    taken = (*_HALF, torch.float32) if gpu.major >= 8 else (torch.float16, torch.float32)
    if call.dtype not in taken:
        return f"{call.dtype} on {gpu.arch}"
    if not same(call.query[1], call.key[1]):
        return "grouped heads"
    half = call.dtype in _HALF
    alignment = 8 if half else 4 if gpu.major >= 8 else 1
    widths = (call.query[3], call.key[3], call.value[3])
    if not same(*widths[:2]) or not all(_multiple(w, alignment) for w in widths):
        return f"head widths {_text(widths)} aren't multiples of {alignment}"
    return None


def _mask_fits(call: Attention, mask: tuple[Extent, ...]) -> bool:
    if len(mask) not in (2, 4):
        return False
    whole = (call.query[0], call.query[1], call.query[2], call.key[2])[-len(mask) :]
    return all(same(m, w) or same(m, 1) for m, w in zip(mask, whole, strict=True))


def same(first: Extent, *others: Extent) -> bool:
    """Whether extents are equal in every call that the shapes stand for."""
    return all(statically_known_true(first == other) for other in others)


def _multiple(extent: Any, of: Any) -> bool:  # extents; torch's releases type `%` differently
    return statically_known_true(extent % of == 0)


def _at_most(limit: int, *extents: Extent) -> bool:
    return all(statically_known_true(e <= limit) for e in extents)


def _text(shape: tuple[Extent, ...]) -> str:
    return "x".join(str(e) for e in shape)
