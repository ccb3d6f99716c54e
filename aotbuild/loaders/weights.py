"""The tensors of one eager module: found by path, laid out as compiled code reads them, given back.

What each artifact wants of them is `constants`' concern; this keeps what all artifacts of a
component share, so that nothing is converted or fused twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aotbuild.loaders.derived import Derived

Path = tuple[str, ...]


class Slot(NamedTuple):
    """Where a tensor is held: a table of parameters, buffers or attributes, and its key.

    `in_module` says that the table is a module's own, of parameters or of buffers.
    """

    table: Any
    key: Any
    in_module: bool = False

    @property
    def value(self) -> Any:
        """What is there now."""
        return self.table[self.key]


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A layout that eager took over, what it had before, and how to see that it still has it."""

    tensor: Tensor
    stride: tuple[int, ...]
    pointer: int

    @property
    def live(self) -> bool:
        return self.tensor.data_ptr() == self.pointer


@dataclass(frozen=True, slots=True)
class _Fused:
    """One buffer of which several of eager's tensors are views, in order."""

    buffer: Tensor
    parts: tuple[Tensor, ...]
    pointers: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        return (
            len(tensors) == len(self.parts)
            and all(a is b for a, b in zip(tensors, self.parts, strict=True))
            and tuple(t.data_ptr() for t in tensors) == self.pointers
            and tuple(t.stride() for t in tensors) == self.strides
        )


class Weights:
    """The tensors of one component, and what the loader changed about them.

    Attributes:
        epoch: counts the changes of the module's tree, after each of which tensors are found anew.
        derived: what is made of the tensors and held beside them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.epoch = 0
        self.derived = Derived()
        self._adopted: dict[str, _Adopted] = {}
        self._fused: dict[Path, _Fused] = {}

    @property
    def derived_bytes(self) -> int:
        """Bytes that were laid out anew; eager reads the same bytes, so they aren't held twice."""
        made = [a.tensor for a in self._adopted.values() if a.live]
        made += [f.buffer for f in self._fused.values() if f.holds(f.parts)]
        return sum(t.numel() * t.element_size() for t in made)

    def find(self, path: str) -> Slot | None:
        """The parameter, buffer or attribute at `path`; None where there is none."""
        prefix, _, last = path.rpartition(".")
        return _held(self._owner(prefix), last)

    def find_all(self, paths: Iterable[str]) -> dict[str, Slot | None]:
        """`find` for each of `paths`, of which many are of one layer."""
        owners: dict[str, Any] = {}
        found = {}
        for path in paths:
            prefix, _, last = path.rpartition(".")
            if prefix not in owners:
                owners[prefix] = self._owner(prefix)
            found[path] = _held(owners[prefix], last)
        return found

    def _owner(self, path: str) -> Any:
        owner: Any = self.module
        for step in path.split(".") if path else ():
            owner = _step(owner, step)
        return owner

    def pinned(self, path: str, sources: Path = ()) -> bool:
        """Whether an artifact has `path` laid out in another way than fused as `sources`."""
        adopted = self._adopted.get(path)
        if adopted is not None and not self._holds(path, adopted.tensor):
            del self._adopted[path]  # the module has another tensor there now
            adopted = None
        if adopted is not None and adopted.live and not sources:
            return True
        return any(
            path in key and key != sources and fused.holds(fused.parts)
            for key, fused in self._fused.items()
        )

    def _holds(self, path: str, tensor: Tensor) -> bool:
        slot = self.find(path)
        return slot is not None and slot.value is tensor

    def lay_out(self, path: str, tensor: Tensor, stride: tuple[int, ...]) -> None:
        """Give `tensor` strides `stride` and an aligned address; eager reads the copy as well."""
        before = self._adopted.get(path)
        original = before.stride if before is not None else tensor.stride()
        tensor.data = _copy(tensor, stride)
        self._adopted[path] = _Adopted(tensor, tuple(original), tensor.data_ptr())

    def fuse(self, sources: Path, parts: Sequence[Tensor]) -> Tensor:
        """`parts` joined along dimension 0; each of them becomes a view of the result."""
        fused = self._fused.get(sources)
        if fused is not None and fused.holds(parts):
            return fused.buffer
        buffer = torch.cat([p.detach() for p in parts])
        views = torch.split(buffer, [p.shape[0] for p in parts])
        for part, view in zip(parts, views, strict=True):
            part.data = view
        pointers = tuple(p.data_ptr() for p in parts)
        strides = tuple(p.stride() for p in parts)
        self._fused[sources] = _Fused(buffer, tuple(parts), pointers, strides)
        return buffer

    def restore(self) -> None:
        """Give eager its own tensors back: the layout they had, the values they have now."""
        for adopted in self._adopted.values():
            if adopted.live:
                adopted.tensor.data = _copy(adopted.tensor, adopted.stride)
        for fused in self._fused.values():
            for part, pointer in zip(fused.parts, fused.pointers, strict=True):
                if part.data_ptr() == pointer:
                    part.data = part.detach().clone()
        self._adopted.clear()
        self._fused.clear()
        self.derived.clear()


def _held(owner: Any, last: str) -> Slot | None:
    if isinstance(owner, nn.Module):
        if vars(owner).get(last) is not None:  # Python, too, looks there first
            return Slot(vars(owner), last)
        for table in (owner._parameters, owner._buffers):
            if table.get(last) is not None:
                return Slot(table, last, in_module=True)
        return None
    if isinstance(owner, (list, tuple)):
        return Slot(owner, int(last)) if last.isdigit() and int(last) < len(owner) else None
    table = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    return Slot(table, last) if last in table else None


def _copy(tensor: Tensor, stride: tuple[int, ...]) -> Tensor:
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach())


def _step(owner: Any, name: str) -> Any:
    if isinstance(owner, nn.Module) and name in owner._modules:
        return owner._modules[name]
    if isinstance(owner, (list, tuple)):
        return owner[int(name)] if name.isdigit() and int(name) < len(owner) else None
    if isinstance(owner, dict):
        return owner.get(name)
    return getattr(owner, "__dict__", {}).get(name)
