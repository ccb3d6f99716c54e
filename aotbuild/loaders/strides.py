"""How tensors lie in memory: dtype, strides, whether two layouts are one, what is wrong with it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def dtype_name(tensor: Tensor) -> str:
    """ "float32"."""
    return _dtype_name(tensor.dtype)


@lru_cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def same_strides(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two layouts of `shape` address the same; of one element there is no stride."""
    return left == right or all(a == b for n, a, b in zip(shape, left, right, strict=True) if n > 1)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of `shape` where its last dimension is the innermost."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def memory_fault(tensor: Tensor) -> str | None:
    """Why the numbers in a tensor's memory aren't its own; None where they are.

    Eager raises then, or knows better; compiled code would read what isn't there.
    """
    if tensor.is_neg() or tensor.is_conj():
        return "is a view that negates or conjugates what is in memory"
    if not tensor.numel():
        return None
    if not tensor.data_ptr():
        return "has no memory"
    if tensor.is_contiguous():
        reach = tensor.numel() - 1
    else:
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + reach + 1) * tensor.element_size()
    held = tensor.untyped_storage().nbytes()
    return f"needs {needed} bytes of memory and has {held}" if held < needed else None
