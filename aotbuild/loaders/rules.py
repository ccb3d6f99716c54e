"""The rules by which constants are made of eager's tensors, with torch alone.

Which tensors they are made of, and whether those fit, `constants` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aotbuild.cache.manifest import Constant

TENSOR, VIEW, REAL, CONCAT, INT8_ROWS, STORED = RULES = (
    "tensor/1",
    "view/1",
    "real/1",
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
    parts = [s.detach().flatten(1) for s in sources]
    shape = (sum(p.shape[0] for p in parts), parts[0].shape[1])
    # Before anything that is thrown away: a C heap can't give back what lies below.
    data = torch.empty(shape, dtype=torch.int8, device=parts[0].device)
    scale = torch.empty(shape[0], 1, device=parts[0].device)
    first = 0
    for part in parts:
        last = first + part.shape[0]
        _quantize(part, data[first:last], scale[first:last])
        first = last
    return data, scale


def real_pairs(source: Tensor) -> Tensor:
    """The numbers of the complex tensor `source`, each as its real and its imaginary part.

    Returns:
        A view of `source` where that lies contiguous, of one dimension more, which is 2.
    """
    return torch.view_as_real(source.detach().resolve_conj().contiguous())


def make(constant: Constant, values: Sequence[Tensor]) -> Tensor:
    """`constant`, of the tensors at its sources; of one tensor a view, wherever that can be.

    For whoever wants one constant alone; data and scale of `int8_rows` come as a pair otherwise.

    Raises:
        ValueError: "stored/1", which is made of nothing, or an unknown rule.
    """
    if constant.rule == TENSOR:
        return values[0].detach()
    if constant.rule == VIEW:
        return values[0].detach().view(constant.shape)
    if constant.rule == REAL:
        return real_pairs(values[0]).view(constant.shape)
    if constant.rule == CONCAT:
        return torch.cat([v.detach() for v in values])
    if constant.rule == INT8_ROWS:
        return pick(constant, int8_rows(values))
    raise ValueError(f"{constant.name}: the rule {constant.rule!r} makes nothing of tensors")


def pick(constant: Constant, pair: tuple[Tensor, Tensor]) -> Tensor:
    """Which of (data, scale) `constant` is, by its dtype."""
    return pair[0] if constant.dtype == "int8" else pair[1]


def _quantize(rows: Tensor, data: Tensor, scale: Tensor) -> None:
    """`rows` into `data` and `scale`."""
    largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
    scale.copy_((largest / _LEVELS).clamp(min=_SMALLEST_SCALE))
    data.copy_((rows * scale.reciprocal()).round_().clamp_(-128, 127))
