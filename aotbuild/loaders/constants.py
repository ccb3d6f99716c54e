"""An artifact's constant plan put into effect: each constant checked, aliased, bound, and watched.

The eager module's tensors themselves are `weights`' concern, the library's binding `runner`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild.cache.manifest import Constant
from aotbuild.errors import IntegrityError
from aotbuild.loaders.runner import Runner
from aotbuild.loaders.watch import Watch, watch
from aotbuild.loaders.weights import Slot, Weights

ALIGNMENT_BYTES = 64
"""AOTInductor's own alignment of constants; GPU kernels read whole vectors from there.

On the CPU an element's own size is enough: every vector is read by `loadu`. So weights that are
mapped from a safetensors file, which promises 8 bytes, are bound where they lie.
Source: torch/_inductor/codegen/cpp.py, 2.11 to 2.14; `AOTI_CONST_ALIGNMENT` in codegen/common.
"""

_SHOWN = 3
_PLAIN_TENSORS = (Tensor, nn.Parameter)
_CONVOLUTION_RANKS = (4, 5)


class Binding:
    """The constants of one artifact, bound to one module's tensors.

    One alias per constant lives as long as the binding: a detached tensor that shares the eager
    tensor's memory. Binding anew assigns the aliases' `data`. `current` says at every call whether
    eager's tensors are still those that were judged; `refit` judges them again, and binds them if
    they fit. The caller keeps `refit` and runs apart.

    Attributes:
        unfit: why the tensors that were judged last don't fit; None where they do.
        only_cast: whether they lack nothing but a cast from `precision`, which the pipeline itself
            may make before it calls (fp16 SDXL does, of its VAE, before every decode).
    """

    def __init__(
        self,
        plan: tuple[Constant, ...],
        weights: Weights,
        runner: Runner,
        device: torch.device,
        precision: str,
    ) -> None:
        self._plan = plan
        self._precision = precision
        self._weights = weights
        self._runner = runner
        self._device = device
        self._aliases: dict[str, Tensor] = {}
        self._watched: Watch | None = None
        self._epoch = -1
        self.unfit: str | None = "not bound yet"
        self.only_cast = False
        asked = sorted(c.name for c in runner.constants)
        planned = sorted(c.name for c in plan)
        if asked != planned:
            odd = ", ".join(sorted(set(asked) ^ set(planned))[:_SHOWN]) or "some twice"
            raise IntegrityError(f"The library's constants aren't the manifest's: {odd}.")

    def current(self) -> bool:
        """Whether eager's tensors are the very ones that `refit` judged, where they were."""
        return (
            self._epoch == self._weights.epoch
            and self._watched is not None
            and self._watched.matches()
        )

    def refit(self) -> str | None:
        """Judge eager's tensors and bind them; None, or the reason why they don't fit."""
        self._epoch = self._weights.epoch
        slots: dict[str, Slot | None] = {
            path: self._weights.find(path) for c in self._plan for path in c.sources
        }
        reasons, moves, casts = self._judge(slots)
        self.unfit = _summary(reasons)
        self.only_cast = bool(reasons) and casts == len(reasons)
        if not reasons:
            try:
                for move in moves:
                    move()
                self._assign(slots)
                self._runner.bind(self._aliases)
            except RuntimeError as e:
                self.unfit = f"its weights can't be laid out: {e}"
        self._watched = watch(s for s in slots.values() if s is not None)
        return self.unfit

    def release(self) -> None:
        """Let go of the container, and of every tensor."""
        self._runner.close()
        self._aliases.clear()
        self._watched = None
        self.unfit = "released"

    def _judge(
        self, slots: dict[str, Slot | None]
    ) -> tuple[list[str], list[Callable[[], None]], int]:
        """Reasons against binding, the changes of layout that binding needs, how many are casts."""
        reasons: list[str] = []
        moves: list[Callable[[], None]] = []
        casts = 0
        for constant in self._plan:
            if constant.rule not in ("tensor/1", "concat/1", "stored/1"):
                reasons.append(f"{constant.name} is made by the unknown rule {constant.rule!r}")
            values: list[Any] = [s and s.value for p in constant.sources for s in (slots[p],)]
            bad = [
                r for p, v in zip(constant.sources, values, strict=True) if (r := self._flaw(p, v))
            ]
            if bad:
                reasons += bad
            elif any(_dtype(v) != constant.dtype for v in values):
                casts += all(_dtype(v) == self._precision for v in values)
                reasons.append(f"{constant.name} is {_dtype(values[0])}, not {constant.dtype}")
            elif constant.rule == "tensor/1":
                reason, move = self._whole(constant, values[0])
                reasons += [reason] if reason else []
                moves += [move] if move else []
            elif constant.rule == "concat/1" and (reason := self._parts(constant, values)):
                reasons.append(reason)
        return reasons, moves, casts

    def _flaw(self, path: str, value: Any) -> str | None:
        """What is wrong with the tensor at `path`, whatever constant is made of it."""
        if value is None:
            return f"{path} is missing"
        if type(value) not in _PLAIN_TENSORS:
            return f"{path} is a {type(value).__name__}, not a plain tensor"
        if value.layout is not torch.strided:
            return f"{path} is {value.layout}"
        if value.device != self._device:
            return f"{path} is on {value.device}, not {self._device}"
        return None

    def _whole(
        self, constant: Constant, tensor: Tensor
    ) -> tuple[str | None, Callable[[], None] | None]:
        """For "tensor/1": the reason against it, or the change of layout that it needs."""
        if tuple(tensor.shape) != constant.shape:
            return f"{constant.name} is {_size(tensor.shape)}, not {_size(constant.shape)}", None
        same = _same_strides(constant.shape, tensor.stride(), constant.stride)
        if same and tensor.data_ptr() % self._alignment(tensor) == 0:
            return None, None
        path = constant.sources[0]
        if not same and tensor.dim() not in _CONVOLUTION_RANKS:
            found, wanted = tuple(tensor.stride()), constant.stride
            return f"{path} has strides {found}, not {wanted}", None
        if self._weights.pinned(path):
            return f"{path} is laid out otherwise for another artifact of this component", None
        return None, lambda: self._weights.lay_out(path, tensor, constant.stride)

    def _alignment(self, tensor: Tensor) -> int:
        return tensor.element_size() if self._device.type == "cpu" else ALIGNMENT_BYTES

    def _parts(self, constant: Constant, parts: list[Tensor]) -> str | None:
        """For "concat/1": the reason against joining `parts`."""
        rows = sum(p.shape[0] if p.dim() else 0 for p in parts)
        if (
            any(tuple(p.shape[1:]) != constant.shape[1:] for p in parts)
            or rows != constant.shape[0]
        ):
            found = " + ".join(_size(p.shape) for p in parts)
            return f"{constant.name} is {found}, not {_size(constant.shape)}"
        if not _same_strides(constant.shape, _contiguous(constant.shape), constant.stride):
            return f"{constant.name} is planned with strides {constant.stride}, not contiguous"
        if any(self._weights.pinned(p, constant.sources) for p in constant.sources):
            return f"{constant.name} is made of tensors laid out for another artifact"
        return None

    def _assign(self, slots: dict[str, Slot | None]) -> None:
        for constant in self._plan:
            if constant.rule == "stored/1":
                if constant.name not in self._aliases:
                    self._aliases[constant.name] = self._stored(constant)
                continue
            values = [s.value for p in constant.sources if (s := slots[p]) is not None]
            joined = constant.rule == "concat/1"
            source = self._weights.fuse(constant.sources, values) if joined else values[0]
            alias = self._aliases.get(constant.name)
            if alias is None:
                self._aliases[constant.name] = source.detach()
            else:
                alias.data = source.data

    def _stored(self, constant: Constant) -> Tensor:
        dtype = getattr(torch, constant.dtype)
        made = torch.empty_strided(
            constant.shape, constant.stride, dtype=dtype, device=self._device
        )
        values = torch.tensor(constant.value, dtype=dtype, device=self._device)
        return made.copy_(values.reshape(constant.shape))


def _same_strides(shape: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether two layouts of `shape` address the same; of one element there is no stride."""
    return left == right or all(a == b for n, a, b in zip(shape, left, right, strict=True) if n > 1)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _size(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _summary(reasons: list[str]) -> str | None:
    if not reasons:
        return None
    unique = list(dict.fromkeys(reasons))
    more = f", and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more
