"""A constant plan held against eager's tensors: what doesn't fit, what must be laid out otherwise.

Changes nothing itself: `constants` makes the changes once everything fits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild.cache.manifest import Constant
from aotbuild.loaders.rules import CONCAT, INT8_ROWS, REAL, RULES, TENSOR, VIEW
from aotbuild.loaders.strides import contiguous, dtype_name, memory_fault, same_strides
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
_COMPLEX = {"float32": "complex64", "float64": "complex128"}
Move = Callable[[], None]


@dataclass(slots=True)
class Verdict:
    """What was found.

    Attributes:
        reasons: why the tensors don't fit; empty where they do.
        moves: the changes of layout that binding needs.
        casts: how many of the reasons are a dtype that the pipeline's own cast would mend.
    """

    reasons: list[str] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    casts: int = 0

    @property
    def summary(self) -> str | None:
        """The first reasons in a sentence's middle; None where there are none."""
        unique = list(dict.fromkeys(self.reasons))
        more = f", and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else ""
        return ", ".join(unique[:_SHOWN]) + more or None

    @property
    def only_cast(self) -> bool:
        """Whether nothing but such a cast is lacking."""
        return bool(self.reasons) and self.casts == len(self.reasons)


class Judge:
    """Judges one plan, again and again.

    Args:
        precision: the dtype the pipeline was loaded in, as the manifest has it.
    """

    def __init__(
        self, plan: tuple[Constant, ...], weights: Weights, device: torch.device, precision: str
    ) -> None:
        self._plan = plan
        self._weights = weights
        self._device = device
        self._precision = precision
        self._quantized_from = _weights_dtype(plan, precision)

    def judge(self, slots: Mapping[str, Slot | None]) -> Verdict:
        """The plan against what `slots` hold now, by path."""
        found = Verdict()
        for constant in self._plan:
            if constant.rule not in RULES:
                found.reasons.append(
                    f"{constant.name} is made by the unknown rule {constant.rule!r}"
                )
                continue
            values: list[Any] = [s and s.value for p in constant.sources for s in (slots[p],)]
            pairs = zip(constant.sources, values, strict=True)
            if bad := [r for p, v in pairs if (r := self._flaw(p, v, constant.rule))]:
                found.reasons += bad
                continue
            dtype = self._source_dtype(constant)
            dtypes = [dtype_name(v) for v in values]
            if any(d != dtype for d in dtypes):
                found.casts += all(d == self._precision for d in dtypes)
                derived = constant.rule in (INT8_ROWS, REAL)
                what = constant.sources[0] if derived else constant.name
                found.reasons.append(f"{what} is {dtypes[0]}, not {dtype}")
                continue
            reason, move = self._form(constant, values)
            found.reasons += [reason] if reason else []
            found.moves += [move] if move else []
        return found

    def _form(self, constant: Constant, values: list[Tensor]) -> tuple[str | None, Move | None]:
        """The reason against the shapes and layouts of `values`, or the change they need."""
        if constant.rule in (TENSOR, VIEW, REAL):
            if len(values) != 1:
                return f"{constant.name} is planned of {len(values)} tensors, not of one", None
            if constant.rule == REAL:
                return _pairs(constant, values[0]), None
            whole = self._whole if constant.rule == TENSOR else self._viewed
            return whole(constant, values[0])
        if constant.rule == CONCAT:
            return self._parts(constant, values), None
        return self._rows(constant, values) if constant.rule == INT8_ROWS else None, None

    def _source_dtype(self, constant: Constant) -> str:
        """The dtype that the tensors at its sources must have."""
        if constant.rule == REAL:
            return _COMPLEX.get(constant.dtype, f"complex numbers of {constant.dtype}")
        return self._quantized_from if constant.rule == INT8_ROWS else constant.dtype

    def _flaw(self, path: str, value: Any, rule: str) -> str | None:
        """What is wrong with the tensor at `path`, whatever the rest of the constant is."""
        if value is None:
            return f"{path} is missing"
        if type(value) not in _PLAIN_TENSORS:
            return f"{path} is a {type(value).__name__}, not a plain tensor"
        if value.layout is not torch.strided:
            return f"{path} is {value.layout}"
        if value.device != self._device and not (rule == REAL and value.device.type == "cpu"):
            return f"{path} is on {value.device}, not {self._device}"
        fault = memory_fault(value)
        return fault and f"{path} {fault}"

    def _whole(self, constant: Constant, tensor: Tensor) -> tuple[str | None, Move | None]:
        """For "tensor/1"."""
        if tuple(tensor.shape) != constant.shape:
            return f"{constant.name} is {_size(tensor.shape)}, not {_size(constant.shape)}", None
        same = same_strides(constant.shape, tensor.stride(), constant.stride)
        return self._placed(constant, tensor, same, constant.stride)

    def _viewed(self, constant: Constant, tensor: Tensor) -> tuple[str | None, Move | None]:
        """For "view/1"."""
        if tensor.numel() != math.prod(constant.shape):
            found, wanted = _size(tensor.shape), _size(constant.shape)
            return f"{constant.sources[0]} is {found}, which can't be seen as {wanted}", None
        if not same_strides(constant.shape, contiguous(constant.shape), constant.stride):
            return _not_contiguous(constant), None
        try:
            stride = tensor.detach().view(constant.shape).stride()
            same = same_strides(constant.shape, stride, constant.stride)
        except RuntimeError:  # the elements don't lie so that any strides reach them
            same = False
        return self._placed(constant, tensor, same, contiguous(tuple(tensor.shape)))

    def _placed(
        self, constant: Constant, tensor: Tensor, same: bool, stride: tuple[int, ...]
    ) -> tuple[str | None, Move | None]:
        """Whether it may stay where it is, or must be laid out by `stride` anew."""
        if same and tensor.data_ptr() % self._alignment(tensor) == 0:
            return None, None
        path = constant.sources[0]
        if not same and tensor.dim() not in _CONVOLUTION_RANKS:
            return f"{path} has strides {tuple(tensor.stride())}, not {stride}", None
        if self._weights.pinned(path):
            return f"{path} is laid out otherwise for another artifact of this component", None
        return None, lambda: self._weights.lay_out(path, tensor, stride)

    def _alignment(self, tensor: Tensor) -> int:
        return tensor.element_size() if self._device.type == "cpu" else ALIGNMENT_BYTES

    def _parts(self, constant: Constant, parts: Sequence[Tensor]) -> str | None:
        """For "concat/1"."""
        rows = sum(p.shape[0] if p.dim() else 0 for p in parts)
        if (
            any(tuple(p.shape[1:]) != constant.shape[1:] for p in parts)
            or rows != constant.shape[0]
        ):
            found = " + ".join(_size(p.shape) for p in parts)
            return f"{constant.name} is {found}, not {_size(constant.shape)}"
        if not same_strides(constant.shape, contiguous(constant.shape), constant.stride):
            return _not_contiguous(constant)
        if any(self._weights.pinned(p, constant.sources) for p in constant.sources):
            return f"{constant.name} is made of tensors laid out for another artifact"
        return None

    def _rows(self, constant: Constant, values: Sequence[Tensor]) -> str | None:
        """For "int8_rows/1"."""
        if constant.dtype not in ("int8", "float32"):
            return f"{constant.name} is planned as {constant.dtype}, not int8 data or float32 scale"
        if not same_strides(constant.shape, contiguous(constant.shape), constant.stride):
            return _not_contiguous(constant)
        pairs = zip(constant.sources, values, strict=True)
        derived = self._weights.derived
        faults = [
            f for p, v in zip(constant.sources, values, strict=True) if (f := derived.fault(p, v))
        ]
        if faults:
            return faults[0]
        shapes = [derived.shape(path, value) for path, value in pairs]
        columns = {math.prod(shape[1:]) for shape in shapes if len(shape) > 1}
        width = 1 if constant.dtype == "float32" else next(iter(columns), 0)
        found = (sum(shape[0] for shape in shapes if shape), width)
        flat = any(len(shape) < 2 for shape in shapes)
        if flat or len(columns) != 1 or found != constant.shape:
            what = " + ".join(map(_size, shapes))
            return f"{constant.name} is made of {what}, which gives no {_size(constant.shape)}"
        return None


def _weights_dtype(plan: Iterable[Constant], precision: str) -> str:
    """The dtype of the weights that are quantized: that of the plan's other floating weights.

    It is `precision` where some have that, or there are none; another one where the pipeline casts
    the component before it calls.
    """
    others = Counter(
        c.dtype for c in plan if c.rule in (TENSOR, VIEW, CONCAT) and "float" in c.dtype
    )
    return precision if precision in others or not others else others.most_common(1)[0][0]


def _pairs(constant: Constant, tensor: Tensor) -> str | None:
    """For "real/1"."""
    if tensor.numel() * 2 != math.prod(constant.shape):
        found, wanted = _size(tensor.shape), _size(constant.shape)
        return f"{constant.sources[0]} is {found} complex numbers, which make no {wanted}"
    if not same_strides(constant.shape, contiguous(constant.shape), constant.stride):
        return _not_contiguous(constant)
    return None


def _not_contiguous(constant: Constant) -> str:
    return f"{constant.name} is planned with strides {constant.stride}, not contiguous"


def _size(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"
