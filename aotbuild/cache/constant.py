"""One entry of the constant plan. What the rules do is `loaders.rules`'s concern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotbuild.cache.signature import DTYPE, RULE
from aotbuild.canonical import are_sizes, checked_fields, matches

_TEXT = frozenset({str})
_NUMBERS = frozenset({bool, int, float})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One tensor that the package asks for, and the rule that makes it.

    Attributes:
        name: the name the package knows it by (its "original FQN").
        rule: "tensor/1", the tensor at the one path of `sources`; "view/1", it under another shape;
            "real/1", the numbers of the complex one there, real and imaginary part by turns;
            "concat/1", those at `sources` joined along dimension 0, of which eager's become views;
            "int8_rows/1", those quantized by rows and joined, data or scale by `dtype`;
            "stored/1", `value` itself.
        sources: paths in the eager module: parameter, buffer, or tensor attribute.
        shape: of the constant as bound.
        dtype: "float32".
        stride: the strides that the code reads it by.
        value: for "stored/1" the numbers, flat.
    """

    name: str
    rule: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    value: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault is not None:
            raise ValueError(f"constant {self.name!r}: {fault}")

    def _fault(self) -> str | None:
        """What is wrong with it; a manifest has thousands, so that nothing is worded in vain."""
        if not type(self.name) is type(self.rule) is type(self.dtype) is str:
            return "name, rule and dtype aren't all text"
        if not matches(RULE, self.rule) or not matches(DTYPE, self.dtype):
            return f"{self.rule!r} or {self.dtype!r} isn't spelled like a rule and a dtype"
        if type(self.sources) is not tuple or not _TEXT.issuperset(map(type, self.sources)):
            return "sources aren't a list of paths"
        if not type(self.shape) is type(self.stride) is tuple or not are_sizes(
            self.shape + self.stride
        ):
            return "shape and stride aren't lists of whole numbers from 0 on"
        if len(self.shape) != len(self.stride):
            return f"{len(self.stride)} strides for {len(self.shape)} dims"
        if self.value is not None and not (
            type(self.value) is tuple and _NUMBERS.issuperset(map(type, self.value))
        ):
            return "its value isn't a list of numbers"
        return None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `value` only where there is one."""
        document = {
            "name": self.name,
            "rule": self.rule,
            "sources": self.sources,
            "shape": self.shape,
            "dtype": self.dtype,
            "stride": self.stride,
        }
        return document if self.value is None else {**document, "value": self.value}

    @classmethod
    def from_json(cls, document: object) -> Constant:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        d = checked_fields(cls, document, "constant")
        for name, value in d.items():
            if type(value) is list:
                d[name] = tuple(value)
        return cls(**d)
