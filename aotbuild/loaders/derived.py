"""Constants that are made of eager's weights and kept beside them: made once, shared, renewed.

It also lets go of the weights that were read; whether it may, `freeing` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild.loaders.pages import MappedFiles, trim_heap
from aotbuild.loaders.rules import int8_rows, real_pairs
from aotbuild.loaders.seen import Seen, seen_now, version_of

Path = tuple[str, ...]
_ALIGNMENT_BYTES = 64

_TRIMMED_BYTES = 8 << 20
"""The C heap is trimmed whenever that much was let go: it can't be relied on to use the gaps again,
and a layer's gap beside the next layer's copies would come to the whole module once more."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Data and scales, and what they were made of."""

    data: Tensor
    scale: Tensor
    seen: tuple[Seen, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Freed:
    """An emptied weight: what it was, and its rows, which are all that is left of it."""

    tensor: Tensor
    shape: tuple[int, ...]
    bytes: int
    version: int
    data: Tensor
    scale: Tensor


class Derived:
    """What is made of one component's tensors and held beside them; the weights that were freed.

    Not safe to call from two threads at once, but for the counts of bytes.

    Attributes:
        free: paths of weights that are emptied as soon as they are quantized.
    """

    def __init__(self) -> None:
        self.free: frozenset[str] = frozenset()
        self._made: dict[Path, _Made] = {}
        self._copied: dict[str, tuple[Seen, Tensor]] = {}
        self._freed: dict[str, _Freed] = {}
        self._mapped: MappedFiles | None = None
        self._untrimmed = 0
        self._computed = False

    @property
    def extra_bytes(self) -> int:
        """Bytes of what was made, none of which eager reads."""
        held: list[_Made | _Freed] = [*list(self._made.values()), *list(self._freed.values())]
        storages = [t.untyped_storage() for m in held for t in (m.data, m.scale)]
        return sum({s.data_ptr(): s.nbytes() for s in storages}.values()) + self.copied_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes of those among them that are copies for the device, not int8 weights."""
        return sum(t.nbytes for _, t in list(self._copied.values()))

    @property
    def freed(self) -> dict[str, int]:
        """Path -> bytes of each weight that is emptied now."""
        return {p: f.bytes for p, f in list(self._freed.items()) if not f.tensor.numel()}

    def shape(self, path: str, value: Tensor) -> tuple[int, ...]:
        """The shape of the weight at `path`, also where it was freed."""
        freed = self._record(path, value)
        return tuple(value.shape) if freed is None else freed.shape

    def fault(self, path: str, value: Tensor) -> str | None:
        """What is wrong with the weight at `path` where it was freed: nobody can change it then."""
        freed = self._record(path, value)
        if freed is None or version_of(value) == freed.version:
            return None
        return (
            f"{path} was changed in place after it had been freed, which changed nothing: give it "
            "whole values by load_state_dict, or load the pipeline again"
        )

    def quantized(
        self, sources: Path, values: Sequence[Tensor], epoch: int
    ) -> tuple[Tensor, Tensor]:
        """(data, scale) of "int8_rows/1" for the weights `values` at `sources`.

        The same two tensors until a weight is another one, moves, changes in place, or `epoch`
        does; new ones then. A freed weight's rows are those it had.
        """
        made = self._made.get(sources)
        seen = self._look(sources, values, epoch)
        if made is None or not all(a.same(b) for a, b in zip(made.seen, seen, strict=True)):
            made = self._make(sources, values, seen)
            self._computed = True
        if self._let_go(sources, values, made):
            made = replace(made, seen=self._look(sources, values, epoch))
        self._made[sources] = made
        return made.data, made.scale

    def real(self, path: str, value: Tensor, device: torch.device, epoch: int) -> Tensor:
        """The constant of "real/1" for the complex `value` at `path`, on `device`.

        Eager's own memory where it can be read there; else one copy, renewed as `quantized`'s are.
        """
        there = value.device == device and value.is_contiguous() and not value.is_conj()
        if there and value.data_ptr() % _ALIGNMENT_BYTES == 0:
            self._copied.pop(path, None)
            return real_pairs(value)
        seen = seen_now(value, epoch)
        before = self._copied.get(path)
        if before is not None and before[0].same(seen):
            return before[1]
        with torch.inference_mode(False), torch.no_grad():
            made = real_pairs(value).to(device, copy=True)
        self._copied[path] = seen, made
        return made

    def trim(self) -> None:
        """Hand back what was freed, and what quantizing took; does nothing where nothing was."""
        if self._computed or self._mapped is not None:
            self._mapped, self._untrimmed, self._computed = None, 0, False
            trim_heap()

    def refill(
        self, _module: nn.Module, state_dict: dict[str, Any], prefix: str, *_rest: Any
    ) -> None:
        """Before the module's `load_state_dict`: give emptied weights the values that are to come.

        torch would refuse them for their shape, both to copy into and to replace.
        """
        for path, freed in self._freed.items():
            value = state_dict.get(prefix + path)
            if freed.tensor.numel() or not isinstance(value, Tensor):
                continue
            if tuple(value.shape) == freed.shape:
                to, dtype = freed.tensor.device, freed.tensor.dtype
                freed.tensor.data = value.detach().to(to, dtype, copy=True)

    def clear(self) -> None:
        """Forget everything that was made."""
        self.free = frozenset()
        self._made.clear()
        self._copied.clear()
        self._freed.clear()

    def _record(self, path: str, value: Tensor) -> _Freed | None:
        freed = self._freed.get(path)
        return freed if freed is not None and freed.tensor is value and not value.numel() else None

    def _look(self, sources: Path, values: Sequence[Tensor], epoch: int) -> tuple[Seen, ...]:
        seen = []
        for path, value in zip(sources, values, strict=True):
            freed = self._record(path, value)
            held = path not in self.free  # what is freed must let go of its memory
            seen.append(
                seen_now(value, epoch, hold=held)
                if freed is None
                else Seen(freed.data, 0, (), 0, 0)
            )
        return tuple(seen)

    def _make(self, sources: Path, values: Sequence[Tensor], seen: tuple[Seen, ...]) -> _Made:
        with torch.inference_mode(False), torch.no_grad():
            freed = [self._record(p, v) for p, v in zip(sources, values, strict=True)]
            rows = tuple(
                f.shape[0] if f else v.shape[0] for f, v in zip(freed, values, strict=True)
            )
            if not any(freed):
                return _Made(*int8_rows(values), seen, rows)
            parts = [
                (f.data, f.scale) if f else int8_rows([v])
                for f, v in zip(freed, values, strict=True)
            ]
            if len(parts) == 1:
                ((data, scale),) = parts
                return _Made(_aligned(data), _aligned(scale), seen, rows)
            data, scale = (torch.cat([part[i] for part in parts]) for i in (0, 1))
            return _Made(data, scale, seen, rows)

    def _let_go(self, sources: Path, values: Sequence[Tensor], made: _Made) -> bool:
        """Empty those weights that may be, and have freed ones' rows be views of `made`.

        Returns whether anything changed.
        """
        halves = (torch.split(t, list(made.rows)) for t in (made.data, made.scale))
        changed = False
        for path, value, (data, scale) in zip(
            sources, values, zip(*halves, strict=True), strict=True
        ):
            freed = self._record(path, value)
            if freed is None and path in self.free:
                size = value.numel() * value.element_size()
                shape = tuple(value.shape)
                self._empty(value, size)
                freed = _Freed(value, shape, size, version_of(value), data, scale)
            elif freed is None or _shared(freed.data, data):
                continue
            self._freed[path] = replace(freed, data=data, scale=scale)
            changed = True
        return changed

    def _empty(self, weight: Tensor, size: int) -> None:
        """Let go of `weight`'s memory, of `size` bytes."""
        self._mapped = self._mapped or MappedFiles()
        self._mapped.page_out(weight)
        with torch.inference_mode(False):
            weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)
        self._untrimmed += size if weight.device.type == "cpu" else 0
        if self._untrimmed >= _TRIMMED_BYTES:
            self._untrimmed = 0
            trim_heap()


def _shared(left: Tensor, right: Tensor) -> bool:
    return left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()


def _aligned(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT_BYTES else tensor
