"""What an artifact's code must offer: AOTInductor's (`runner`) and torch.compile's (`jit`) both do.

Neither checks call or weights; `dispatch` and `constants` do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from aotbuild.loaders.placement import Compare


class Named(Protocol):
    """A constant that the code asks for."""

    @property
    def name(self) -> str:
        """Its name in the plan."""


class Code(Protocol):
    """Compiled code bound to one module.

    Attributes:
        num_inputs, num_outputs: how many tensors it takes and gives.
        compare: its own comparison of tensors with what was recorded; None without one.
    """

    num_inputs: int
    num_outputs: int
    compare: Compare | None

    @property
    def constants(self) -> Sequence[Named]:
        """What `bind` must give it."""

    def bind(self, aliases: Mapping[str, Tensor]) -> None:
        """Make the code read `aliases`."""

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for `inputs`, in the signature's order."""

    def close(self) -> None:
        """Let go of everything; a second time does nothing."""
