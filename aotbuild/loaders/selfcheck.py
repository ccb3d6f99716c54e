"""An artifact's first answer held against eager's, where it wasn't verified on this machine.

What follows from a disagreement is `dispatch`'s concern.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aotbuild.cache.signature import flatten

TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-4}
LOW_PRECISION_TOLERANCE = 2e-2
"""Relative L2 error. Far above what rounding makes of a UNet (1e-6 in float32, 5e-3 in bfloat16),
far below what a wrong kernel does: eager itself stands in for the reference here."""

QUANTIZED_TOLERANCE = 1e-1
"""The same for int8. Eager isn't quantized, so what int8 itself costs comes on top: 5e-3 of an SDXL
UNet's output, a few hundredths of a small network's, whose few layers average less out. A scale of
another layer, or rows in another order, are wrong by about the answer's own size."""


def disagreement(answer: Any, eager: Any, *, quantized: bool = False) -> str | None:
    """Where the two differ beyond rounding; "" where nowhere; None where eager isn't finite.

    `quantized`: the answer is from int8 weights, eager's from those that they were made of.
    """
    ours, theirs = list(flatten(answer)), list(flatten(eager))
    if [p for p, _ in ours] != [p for p, _ in theirs]:
        return "the answers have another structure"
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if not isinstance(b, Tensor):
            if a != b:
                return f"{path or 'the answer'} is {a!r}, not {b!r}"
            continue
        if not isinstance(a, Tensor) or (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{path or 'the answer'} has another shape or dtype"
        reference = b.detach().double()
        if not bool(torch.isfinite(reference).all()):
            return None
        error = float((a.double() - reference).norm() / reference.norm().clamp_min(1e-30))
        bound = TOLERANCES.get(b.dtype, LOW_PRECISION_TOLERANCE)
        bound = max(bound, QUANTIZED_TOLERANCE) if quantized else bound
        if not error <= bound:
            return f"relative error {error:.1e}, allowed {bound:.0e}"
    return ""
