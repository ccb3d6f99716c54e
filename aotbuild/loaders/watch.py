"""Eager's tensors as they were judged, compared at every call in microseconds.

What is judged about them `constants` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter, is_, itemgetter
from typing import Any

from torch import Tensor

from aotbuild.loaders.placement import Compare, placement
from aotbuild.loaders.weights import Slot

_version: Callable[[Any], int] = attrgetter("_version")


class Watch:
    """Tensors where they were found: which they are, where their memory is, how it is laid out.

    Compared by loops in C, as there are thousands: where they lie by `compare`, the library's own,
    where it has one. A layer's table of parameters is compared whole
    with a copy of itself, which looks at the identity of each value first; where a tensor is
    another one, `==` of the two gives no plain bool and raises. Of two tensors of one element it
    does give one, so those are compared by identity apart.

    Of `counted` the changes in place are noticed too, as far as torch counts them: not those made
    through `.data`, nor those of tensors that were made in inference mode.
    """

    def __init__(
        self,
        slots: Iterable[Slot],
        counted: Iterable[Tensor] = (),
        compare: Compare | None = None,
    ) -> None:
        slots = list(slots)
        of_modules, elsewhere = _split(slots)
        self._tables = list({id(s.table): s.table for s in of_modules}.values())
        self._copies = [dict(table) for table in self._tables]
        single = [s for s in slots if s.value.numel() < 2] + elsewhere
        self._places = [(itemgetter(s.key), s.table) for s in single]
        self._placed = [s.value for s in single]
        self._tensors = [s.value for s in slots]
        self._types = list(map(type, self._tensors))
        self._in_place = placement(self._tensors, compare)
        self._counted = [t for t in counted if not t.is_inference()]
        self._versions = list(map(_version, self._counted))

    def matches(self) -> bool:
        """Whether every tensor is the one that was there, where it was."""
        try:
            return (
                self._tables == self._copies
                and all(map(is_, [get(table) for get, table in self._places], self._placed))
                and list(map(type, self._tensors)) == self._types
                and self._in_place()
                and (not self._counted or list(map(_version, self._counted)) == self._versions)
            )
        except Exception:  # whatever `==` of some tensor class raises: it isn't the one judged
            return False


def watch(
    slots: Iterable[Slot], counted: Iterable[Tensor] = (), compare: Compare | None = None
) -> Watch | None:
    """A watch over `slots`; None where one of them holds nothing that can be watched."""
    try:
        return Watch(slots, counted, compare)
    except (RuntimeError, TypeError, AttributeError):
        return None


def _split(slots: Iterable[Slot]) -> tuple[list[Slot], list[Slot]]:
    """Those in a module's table of parameters or buffers, and those elsewhere."""
    parts: tuple[list[Slot], list[Slot]] = [], []
    for slot in slots:
        parts[not slot.in_module].append(slot)
    return parts
