"""Tensors as they were read, to tell later whether what was made of them still holds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as it was read: which, where, how laid out, how often changed in place, when.

    `held` shares its memory, so that no other tensor can come to lie at the same address.
    """

    tensor: Tensor
    pointer: int
    stride: tuple[int, ...]
    version: int
    epoch: int
    held: Tensor | None = None

    def same(self, other: Seen) -> bool:
        """Whether nothing about it has changed."""
        return self.tensor is other.tensor and (
            (self.pointer, self.stride, self.version, self.epoch)
            == (other.pointer, other.stride, other.version, other.epoch)
        )


def seen_now(tensor: Tensor, epoch: int, *, hold: bool = True) -> Seen:
    """`tensor` as it is; without `hold` its memory may be let go of."""
    held = tensor.detach() if hold else None
    stride = tuple(tensor.stride())
    return Seen(tensor, tensor.data_ptr(), stride, version_of(tensor), epoch, held)


def version_of(tensor: Tensor) -> int:
    """How often torch has counted a change in place; 0 where it doesn't count."""
    return 0 if tensor.is_inference() else tensor._version
