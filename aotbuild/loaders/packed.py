"""Packed constants: mapped from their file, checked, and bound where the module has no weights.

How they lie in the file `cache.packed_layout` says.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild.cache.library import BROKEN, open_checked
from aotbuild.cache.manifest import Constant, Manifest
from aotbuild.cache.packed_layout import Place, fault, layout_of, memory_order, memory_shape
from aotbuild.errors import IntegrityError
from aotbuild.loaders.constants import Binding
from aotbuild.loaders.judging import Verdict
from aotbuild.loaders.running import Code
from aotbuild.loaders.weights import Slot, Weights

_ROUNDINGS = 8
"""Last places by which a table of sines may differ from one machine or version to another."""


def map_constants(folder: Path, manifest: Manifest, device: torch.device) -> dict[str, Tensor]:
    """Name -> packed constant on `device`: on the CPU the mapped file itself, elsewhere a copy.

    The file is hashed through the descriptor that it is mapped from, in private, and its header
    must be the very one that the constant plan asks for.

    Raises:
        IntegrityError: it isn't the recorded file, or isn't laid out as the plan says.
    """
    assert manifest.packed is not None
    record = manifest.packed.file
    where = folder / record.name
    try:
        layout = layout_of(manifest.constants)
    except ValueError as e:
        raise IntegrityError(f"{where} can't be what its manifest says: {e}. {BROKEN}.") from e
    descriptor = open_checked(where, record)
    try:
        if record.bytes != layout.bytes:
            raise IntegrityError(
                f"{where} has {record.bytes} bytes, and its constants take {layout.bytes}. "
                f"{BROKEN}."
            )
        mapped = mmap.mmap(descriptor, layout.bytes, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    reason = fault(mapped[: len(layout.head)], layout)
    if reason is not None:
        raise IntegrityError(f"{where} isn't laid out as its manifest says: {reason}. {BROKEN}.")
    return {p.constant.name: _tensor(mapped, p).to(device) for p in layout.places}


def _tensor(mapped: mmap.mmap, place: Place) -> Tensor:
    """The constant at `place`, in the mapped memory, with the strides of the plan."""
    constant = place.constant
    dtype, shape = getattr(torch, constant.dtype), memory_shape(constant)
    if place.end == place.begin:
        return torch.empty_strided(constant.shape, constant.stride, dtype=dtype)
    size = place.end - place.begin
    data = torch.frombuffer(mapped, dtype=torch.uint8, offset=place.begin, count=size)
    order = memory_order(constant)
    return data.view(dtype).view(shape).permute([order.index(i) for i in range(len(order))])


def _same_values(ours: Tensor, packed: Tensor) -> bool:
    """Whether both hold the same numbers, but for what rounding makes of them elsewhere."""
    numbers = torch.view_as_real(ours) if ours.is_complex() else ours
    found = numbers.detach().to(packed.device, packed.dtype).double().flatten()
    expected = packed.double().flatten()
    if found.shape != expected.shape:
        return False
    if not packed.is_floating_point() or not packed.numel():
        return torch.equal(found, expected)
    bound = _ROUNDINGS * torch.finfo(packed.dtype).eps * expected.abs().max()
    return bool(((found - expected).abs() <= bound).all())


class PackedBinding(Binding):
    """The constants of one artifact, bound to packed ones, for a module without weights.

    It doesn't fit any more once the module has been given weights of its own, nor where a table
    that its constructor computes, and no checkpoint holds, isn't the packed one.
    """

    def __init__(
        self,
        packed: Mapping[str, Tensor],
        plan: tuple[Constant, ...],
        weights: Weights,
        runner: Code,
        device: torch.device,
        precision: str,
    ) -> None:
        super().__init__(plan, weights, runner, device, precision)
        self._packed = dict(packed)

    def release(self) -> None:
        """Let go of the container, and of the mapped file."""
        super().release()
        self._packed.clear()

    def _look(self, slots: dict[str, Slot | None]) -> Verdict:
        values: dict[str, Any] = {path: slot.value for path, slot in slots.items() if slot}
        given = [p for p, v in values.items() if isinstance(v, nn.Parameter) and not v.is_meta]
        verdict = Verdict([f"{p} has a value now, and packed constants are bound" for p in given])
        verdict.reasons += self._tables(values)
        self.unfit, self.only_cast = verdict.summary, False
        return verdict

    def _tables(self, values: Mapping[str, Any]) -> Iterator[str]:
        """The module's own tables, which no checkpoint holds, where they aren't those packed."""
        own = {p: v for p, v in values.items() if isinstance(v, Tensor) and not v.is_meta}
        held = self._weights.module.state_dict(keep_vars=True) if own else {}
        for constant in self._plan:
            path = constant.sources[0] if len(constant.sources) == 1 else ""
            if path not in own or path in held or isinstance(own[path], nn.Parameter):
                continue
            if not _same_values(own[path], self._packed[constant.name]):
                yield f"{path} isn't what was packed: a change of the module's, or another version"

    def _source(self, constant: Constant, slots: dict[str, Slot | None]) -> Tensor:
        del slots
        return self._packed[constant.name]
