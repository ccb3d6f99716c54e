"""The rules by which constants are made of eager's tensors, with torch alone.

Which tensors they are made of, and whether those fit, `constants` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TENSOR, VIEW, CONCAT, INT8_ROWS, STORED = RULES = (
    "tensor/1",
    "view/1",
    "concat/1",
    "int8_rows/1",
    "stored/1",
)

_LEVELS = 127.5
"""Half the distance between int8's bounds, as torchao's symmetric mapping has it."""

_SMALLEST_SCALE = torch.finfo(torch.float32).eps


def int8_rows(sources: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """(data, scale) of the rule "int8_rows/1": the sources' rows, each quantized by itself.

    Args:
        sources: floating tensors of [rows, ...], whose trailing dimensions count as one.

    Returns:
        data: int8 of [all rows, columns]. scale: float32 of [all rows, 1]; data * scale is the
        weight again, up to rounding.

    Source: torchao 0.18, `Int8Tensor.from_hp` with `PerRow`: the scale is worked out in the
    weight's own dtype, the rounding in float32. The same bits, for float32, bfloat16 and float16.
    """
    made = [_quantized(s.detach().flatten(1)) for s in sources]
    if len(made) == 1:
        return made[0]
    return torch.cat([data for data, _ in made]), torch.cat([scale for _, scale in made])


def _quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    scale = (largest / _LEVELS).clamp(min=_SMALLEST_SCALE).float()
    levels = (rows * scale.reciprocal()).round_().clamp_(-128, 127)
    return levels.to(torch.int8), scale
