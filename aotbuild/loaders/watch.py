"""Eager's tensors as they were judged, compared at every call in microseconds.

What is judged about them `constants` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter, is_, itemgetter
from typing import Any

from torch import Tensor

from aotbuild.loaders.weights import Slot

_data_ptr: Callable[[Any], int] = Tensor.data_ptr
_stride: Callable[[Any], tuple[int, ...]] = Tensor.stride
_is_contiguous: Callable[[Any], bool] = Tensor.is_contiguous
_version: Callable[[Any], int] = attrgetter("_version")


class Watch:
    """Tensors where they were found: which they are, where their memory is, how it is laid out.

    Compared by C loops, as there are thousands. A layer's table of parameters is compared whole
    with a copy of itself, which looks at the identity of each value first; where a tensor is
    another one, `==` of the two gives no plain bool and raises. Of two tensors of one element it
    does give one, so those are compared by identity apart.

    Of `counted` the changes in place are noticed too, as far as torch counts them: not those made
    through `.data`, nor those of tensors that were made in inference mode.
    """

    def __init__(self, slots: Iterable[Slot], counted: Iterable[Tensor] = ()) -> None:
        slots = list(slots)
        of_modules, elsewhere = _split(slots)
        self._tables = list({id(s.table): s.table for s in of_modules}.values())
        self._copies = [dict(table) for table in self._tables]
        single = [s for s in slots if s.value.numel() < 2] + elsewhere
        self._places = [(itemgetter(s.key), s.table) for s in single]
        self._placed = [s.value for s in single]
        self._tensors = [s.value for s in slots]
        self._pointers = list(map(_data_ptr, self._tensors))
        # `p.data = p.data.transpose(...)` keeps the address, and the shape where extents are equal.
        alike = [t for t in self._tensors if len(set(t.shape)) < t.dim()]
        self._contiguous = [t for t in alike if t.is_contiguous()]
        self._strided = [t for t in alike if not t.is_contiguous()]
        self._strides = list(map(_stride, self._strided))
        self._counted = [t for t in counted if not t.is_inference()]
        self._versions = list(map(_version, self._counted))

    def matches(self) -> bool:
        """Whether every tensor is the one that was there, where it was."""
        try:
            return (
                self._tables == self._copies
                and all(map(is_, [get(table) for get, table in self._places], self._placed))
                and list(map(_data_ptr, self._tensors)) == self._pointers
                and all(map(_is_contiguous, self._contiguous))
                and list(map(_stride, self._strided)) == self._strides
                and (not self._counted or list(map(_version, self._counted)) == self._versions)
            )
        except Exception:  # whatever `==` of some tensor class raises: it isn't the one judged
            return False


def watch(slots: Iterable[Slot], counted: Iterable[Tensor] = ()) -> Watch | None:
    """A watch over `slots`; None where one of them holds nothing that can be watched."""
    try:
        return Watch(slots, counted)
    except (RuntimeError, TypeError, AttributeError):
        return None


def _split(slots: Iterable[Slot]) -> tuple[list[Slot], list[Slot]]:
    """Those in a module's table of parameters or buffers, and those elsewhere."""
    parts: tuple[list[Slot], list[Slot]] = [], []
    for slot in slots:
        parts[not slot.in_module].append(slot)
    return parts
