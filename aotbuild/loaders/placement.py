"""Where tensors lie and how they are laid out, compared at every call.

By code that the artifact's library carries (build/placement.h), in one pass; by torch's own methods
where a library has none. Which tensors they are `watch` says.

A private layout of torch stands in this file alone: a tensor's Python object holds an
`at::Tensor`, whose address is what the C interface calls a handle. Where it lies in the object is
found out tensor by tensor, by looking for the address that `_cdata` tells. A handle of the C
interface's own would be a further reference, with which `torch.utils.swap_tensors` refuses a
tensor. Tried on torch 2.11.0, 2.13.0 and 2.14.1:
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/autograd/python_variable.h
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Compare = Callable[[Any, int, Any, bool], int]
"""`AotbuildPlacement`: (handles, their count, record, whether to compare) -> 0 for equal."""

_WORD = ctypes.sizeof(ctypes.c_void_p)
_data_ptr: Callable[[Any], int] = Tensor.data_ptr
_stride: Callable[[Any], tuple[int, ...]] = Tensor.stride
_is_contiguous: Callable[[Any], bool] = Tensor.is_contiguous


def compare_function(library: ctypes.CDLL) -> Compare | None:
    """The library's own comparison, called with the GIL held; None where it carries none."""
    try:
        address = ctypes.cast(library.AotbuildPlacement, ctypes.c_void_p).value
    except AttributeError:
        return None
    kinds = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32)
    return None if address is None else ctypes.PYFUNCTYPE(ctypes.c_int64, *kinds)(address)


def placement(tensors: Sequence[Tensor], compare: Compare | None) -> Callable[[], bool]:
    """A question to ask again and again: do `tensors` lie where they do now?

    With `compare` it sees every change of address, dtype, shape and strides; without, of address,
    and of strides where two extents are equal (`p.data = p.data.transpose(...)`).

    Raises:
        RuntimeError: one of them has no memory.
    """
    pointers = list(map(_data_ptr, tensors))
    handles = [] if compare is None else list(map(_handle, tensors))
    if compare is None or None in handles:
        return _interpreted(tensors, pointers)
    return _compiled(tensors, (ctypes.c_void_p * len(handles))(*handles), compare)


def _compiled(
    tensors: Sequence[Tensor], handles: ctypes.Array[ctypes.c_void_p], compare: Compare
) -> Callable[[], bool]:
    """The handles point into `tensors`, which the answer keeps alive with them."""
    words = sum(3 + 2 * t.dim() for t in tensors)
    record = (ctypes.c_int64 * words)()
    if compare(handles, len(tensors), record, False):
        raise RuntimeError("a tensor without memory")

    def unchanged() -> bool:
        return not compare(handles, len(tensors), record, True)

    return unchanged


def _interpreted(tensors: Sequence[Tensor], pointers: list[int]) -> Callable[[], bool]:
    alike = [t for t in tensors if len(set(t.shape)) < t.dim()]
    contiguous = [t for t in alike if t.is_contiguous()]
    strided = [t for t in alike if not t.is_contiguous()]
    strides = list(map(_stride, strided))

    def unchanged() -> bool:
        return (
            list(map(_data_ptr, tensors)) == pointers
            and all(map(_is_contiguous, contiguous))
            and list(map(_stride, strided)) == strides
        )

    return unchanged


def _handle(tensor: Tensor) -> int | None:
    """The address of the `at::Tensor` in the tensor's Python object, if it is where it was seen."""
    wanted = tensor._cdata
    for offset in range(2 * _WORD, min(type(tensor).__basicsize__, 5 * _WORD), _WORD):
        if ctypes.c_void_p.from_address(id(tensor) + offset).value == wanted:
            return id(tensor) + offset
    return None
