"""Calls to verify an artifact with: every case of its signature, the rehearsal's small values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aotbuild.cache.leaves import grow
from aotbuild.cache.signature import Signature, TensorSpec, parse_extent

if TYPE_CHECKING:
    import torch

Sizes = dict[str, int]
"""A value for each symbol of a signature."""


def cases(signature: Signature) -> Iterator[Sizes]:
    """A value for each symbol: none for an exact signature, else all corners and one inside."""
    names = [name for name, _, _ in signature.symbols]
    ends = [sorted({low, high}) for _, low, high in signature.symbols]
    for values in itertools.product(*ends):
        yield dict(zip(names, values, strict=True))
    if names:
        inside = [(low * 2 + high) // 3 for _, low, high in signature.symbols]
        yield dict(zip(names, inside, strict=True))


def example_call(
    signature: Signature, values: dict[str, list[float]], sizes: Sizes, *, device: str, seed: int
) -> dict[str, Any]:
    """A call of the signature: name -> argument, as the module's method takes it.

    Args:
        values: path -> numbers to use in place of random ones, where the rehearsal's matter.
        sizes: a value for each symbol.
    """
    import torch

    leaves: dict[str, Any] = dict(signature.static)
    generator = torch.Generator().manual_seed(seed + 1)
    for spec in signature.inputs:
        leaves[spec.path] = _tensor(spec, values.get(spec.path), sizes, generator).to(device)
    call: dict[str, Any] = grow(leaves)
    return call


def _tensor(
    spec: TensorSpec, values: list[float] | None, sizes: Sizes, generator: torch.Generator
) -> torch.Tensor:
    import torch

    dtype = getattr(torch, spec.dtype)
    pairs = (parse_extent(e) for e in spec.shape)
    shape = [factor * sizes[symbol] if symbol else factor for factor, symbol in pairs]
    if values is not None:
        return torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)
    if not dtype.is_floating_point:
        return torch.ones(shape, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
