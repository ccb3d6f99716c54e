"""A call held against an artifact's signature: what keeps the one from covering the other.

Runs nothing: `dispatch` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aotbuild.cache.signature import Signature, TensorSpec, flatten, parse_extent
from aotbuild.loaders.signature import Call


def differences(signature: Signature, call: Call, device: torch.device) -> list[str]:
    """What keeps `call` from being one that `signature` describes; empty where it is one.

    Ruled arguments must have been brought to their form. `device` is where the component is.
    """
    found = dict(flatten(call))
    tensors = {p: v for p, v in found.items() if isinstance(v, Tensor)}
    static = {p: v for p, v in found.items() if p not in tensors}
    symbols: dict[str, int] = {}
    ranges = {name: (low, high) for name, low, high in signature.symbols}
    reasons = []
    for spec in signature.inputs:
        tensor = tensors.pop(spec.path, None)
        if tensor is None:
            reasons.append(
                f"{spec.path} is {_shown(static.pop(spec.path, 'absent'))}, not a tensor"
            )
        elif not _fits(spec, tensor, device, ranges, symbols):
            reasons.append(f"{spec.path} is {described(tensor)}, not {_expected(spec, ranges)}")
    for path, tensor in tensors.items():
        reasons.append(f"{path} is a tensor, {described(tensor)}")
    for path, value in signature.static:
        other = static.pop(path, _ABSENT)
        if path and not _same(value, other):
            reasons.append(f"{path} is {_shown(other)}, not {_shown(value)}")
        elif not path and isinstance(value, dict):
            reasons += _argument_differences(value, other)
    reasons += [f"{path} is {_shown(value)}" for path, value in static.items()]
    return reasons


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _fits(
    spec: TensorSpec,
    tensor: Tensor,
    device: torch.device,
    ranges: Mapping[str, tuple[int, int]],
    symbols: dict[str, int],
) -> bool:
    """Whether shape, dtype and device agree; `symbols` collects what the extents solve to."""
    if tensor.device != device or str(tensor.dtype) != f"torch.{spec.dtype}":
        return False
    if tensor.dim() != len(spec.shape):
        return False
    for extent, size in zip(spec.shape, tensor.shape, strict=True):
        factor, symbol = parse_extent(extent)
        if symbol is None:
            if size != factor:
                return False
            continue
        count, rest = divmod(size, factor)
        low, high = ranges[symbol]
        if rest or not low <= count <= high or symbols.setdefault(symbol, count) != count:
            return False
    return True


def _argument_differences(expected: dict[str, Any], found: Any) -> list[str]:
    left, right = set(expected.get("dict", ())), set(dict(found).get("dict", ()))
    return [f"argument {n} is new" for n in sorted(right - left)] + [
        f"argument {n} is missing" for n in sorted(left - right)
    ]


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and left == right


def _shown(value: object) -> str:
    return described(value) if isinstance(value, Tensor) else repr(value)


def requires_grad(value: Any) -> bool:
    """Whether any tensor in the tree `value` does."""
    if isinstance(value, Tensor):
        return value.requires_grad
    if isinstance(value, dict):
        return any(map(requires_grad, value.values()))
    return isinstance(value, (list, tuple)) and any(map(requires_grad, value))


def described(tensor: Tensor) -> str:
    """Shape, dtype and device, for people."""
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"


def _expected(spec: TensorSpec, ranges: Mapping[str, tuple[int, int]]) -> str:
    def shown(extent: int | str) -> str:
        factor, symbol = parse_extent(extent)
        if symbol is None:
            return str(factor)
        low, high = ranges[symbol]
        step = f" by {factor}" if factor > 1 else ""
        return f"({factor * low}..{factor * high}{step})"

    return f"{'x'.join(map(shown, spec.shape)) or 'scalar'} {spec.dtype} on {spec.device}"
