"""How far two answers are apart, and whether they can be compared; `verify` sets the bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aotbuild.errors import VerificationError

if TYPE_CHECKING:
    import torch


def relative_l2(found: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """|found - reference| / |reference| over all tensors together, in float64; inf on NaN."""
    import torch

    if [t.shape for t in found] != [t.shape for t in reference]:
        return float("inf")
    pairs = [(a.double(), b.double()) for a, b in zip(found, reference, strict=True)]
    error = torch.stack([(a - b).norm() for a, b in pairs]).norm()
    size = torch.stack([b.norm() for _, b in pairs]).norm()
    ratio = (error / size).item()
    return ratio if ratio == ratio else float("inf")


def check_finite(
    where: str, artifact: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]
) -> None:
    """Refuse to compare what isn't all numbers: nothing would be learnt, or could be recorded.

    Args:
        where: names artifact and case in the error.
        artifact: its answer. expected: eager's, in either precision.

    Raises:
        VerificationError: saying whose answer it is.
    """
    if not _finite(expected):
        raise VerificationError(
            f"{where}: eager's own answer holds NaN or infinity, with the random weights and "
            "inputs of this seed, so that there is nothing to compare with. A precision with a "
            "wider range may do: --dtype bf16 or fp32."
        )
    if not _finite(artifact):
        raise VerificationError(
            f"{where} is wrong: its answer holds NaN or infinity, where eager's doesn't. Please "
            "report it with the command that built it."
        )


def _finite(tensors: Iterable[torch.Tensor]) -> bool:
    import torch

    return all(bool(torch.isfinite(t).all()) for t in tensors)
