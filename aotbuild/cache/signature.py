"""The call signature as data: what a manifest says an artifact's calls look like.

Reads no tensor (`loaders.signature` does).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aotbuild.cache.leaves import ANSWERS, CONTAINERS, check_leaf
from aotbuild.canonical import (
    check_sizes,
    check_texts,
    checked_fields,
    checked_list,
    digest,
    matches,
    shown,
)

Extent: TypeAlias = "int | str"
"""One dimension: a number, or a multiple of a symbol, "8*h" (the factor is always written)."""

Static: TypeAlias = "bool | int | float | str | dict[str, Any] | None"
"""A leaf that isn't a tensor, or a container: {"dict": [keys]}, {"list": length}, {"tuple": n}.

Of an answer also {"object": [class, field, ...]}, an output class of the module's library."""

DTYPE = "[a-z][a-z0-9_]*"
RULE = r"[a-z0-9_]+/[1-9][0-9]*"
DEVICES = ("cpu", "cuda")
"""How dtypes and rules are spelled, and the kinds of device that artifacts are built for."""

_SYMBOL = "[a-z][a-z0-9_]*"
_SYMBOLIC = re.compile(r"([1-9]\d*)\*([a-z][a-z0-9_]*)")


def parse_extent(extent: Extent) -> tuple[int, str | None]:
    """(factor, symbol) of a symbolic extent, (size, None) of a plain one."""
    if isinstance(extent, int) and not isinstance(extent, bool) and extent >= 0:
        return extent, None
    match = _SYMBOLIC.fullmatch(extent) if isinstance(extent, str) else None
    if match is None:
        raise ValueError(f"extent {extent!r} is neither a size nor FACTOR*SYMBOL")
    return int(match[1]), match[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a call.

    Attributes:
        path: where it stands among the arguments, "sample" or "added_cond_kwargs.time_ids".
        shape: extents; symbolic ones name a symbol of the signature.
        dtype: as torch names it, without the prefix: "float32".
        stride: elements between neighbours per dimension, of the layout that the code reads; with
            symbolic shapes None: contiguous.
        device: "cpu" or "cuda".
        rule: how other tensors are brought to this form, e.g. "timestep/1"; None: not at all.
    """

    path: str
    shape: tuple[Extent, ...]
    dtype: str
    stride: tuple[int, ...] | None
    device: str
    rule: str | None = None

    def __post_init__(self) -> None:
        check_texts("tensor", self, "path", "dtype", "device")
        if not matches(DTYPE, self.dtype):
            raise ValueError(f"{self.path}: {self.dtype!r} isn't a dtype's name")
        if self.device not in DEVICES:
            raise ValueError(f"{self.path}: device {self.device!r} is none of {DEVICES}")
        check_rule(self.path, self.rule)
        for extent in self.shape:
            parse_extent(extent)
        if self.stride is None:
            return
        check_sizes(f"{self.path}: stride", self.stride)
        if len(self.stride) != len(self.shape):
            raise ValueError(f"{self.path}: {len(self.stride)} strides for {len(self.shape)} dims")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "path": self.path,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "stride": None if self.stride is None else list(self.stride),
            "device": self.device,
            "rule": self.rule,
        }

    @classmethod
    def from_json(cls, document: object) -> TensorSpec:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        d = checked_fields(cls, document, "tensor")
        stride = None if d["stride"] is None else tuple(checked_list("stride", d["stride"]))
        return cls(**{**d, "shape": tuple(checked_list("shape", d["shape"])), "stride": stride})


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The calls that one artifact serves.

    Attributes:
        inputs: the tensors, in the order in which the package takes them.
        static: (path, value) of every other leaf and every container, sorted by path. An absent
            argument stands here as its declared default.
        outputs: the tensors that come back, in the package's order; their paths say where they
            stand in the answer: "0" is the first of a tuple, "" the answer itself.
        returns: (path, value) of every container and every other leaf of the answer.
        symbols: (name, smallest, largest) of each symbol; a call's extent must be FACTOR * a whole
            number within. Empty for an exact signature.
    """

    inputs: tuple[TensorSpec, ...]
    static: tuple[tuple[str, Static], ...]
    outputs: tuple[TensorSpec, ...]
    returns: tuple[tuple[str, Static], ...] = field(default=())
    symbols: tuple[tuple[str, int, int], ...] = field(default=())

    def __post_init__(self) -> None:
        for name, low, high in self.symbols:
            if not isinstance(name, str) or not matches(_SYMBOL, name):
                raise ValueError(f"symbol {shown(name)} isn't a plain name")
            check_sizes(f"symbol {name!r}: range", (low, high))
            if not 1 <= low <= high:
                raise ValueError(f"symbol {name!r}: range {low}..{high} is empty")
        names = {n for n, _, _ in self.symbols}
        for spec in (*self.inputs, *self.outputs):
            for extent in spec.shape:
                symbol = parse_extent(extent)[1]
                if symbol is not None and symbol not in names:
                    raise ValueError(f"{spec.path}: symbol {symbol!r} has no range")
        for entries, kinds in ((self.static, CONTAINERS), (self.returns, ANSWERS)):
            for path, value in entries:
                check_leaf(path, value, kinds)
            if list(entries) != sorted(entries, key=lambda entry: entry[0]):
                raise ValueError("static leaves aren't sorted by path")

    @property
    def dynamic(self) -> bool:
        """Whether it serves a range of shapes."""
        return bool(self.symbols)

    @property
    def slug(self) -> str:
        """A short folder name: the first tensor's shape, dtype, and four digits of the digest.

        >>> "2x4x64x64-float32-1a2b"
        """
        first = self.inputs[0] if self.inputs else None
        shape = "x".join(str(e).replace("*", "") for e in first.shape) if first else "none"
        dtype = first.dtype if first else "none"
        return f"{shape or 'scalar'}-{dtype}-{digest(self.calls())[:4]}"

    def calls(self) -> dict[str, Any]:
        """What tells the calls it serves from others, as JSON: all but what comes back.

        Known before anything is exported, so that it can be part of a key; inputs by path, as
        their order is the package's affair.
        """
        return {
            "inputs": [s.to_json() for s in sorted(self.inputs, key=lambda s: s.path)],
            "static": [[path, value] for path, value in self.static],
            "symbols": [list(s) for s in self.symbols],
        }

    def sizes(self) -> Iterator[str]:
        """One line per tensor input, for people: "sample 2x4x64x64 float32"."""
        for spec in self.inputs:
            yield f"{spec.path} {'x'.join(map(str, spec.shape)) or 'scalar'} {spec.dtype}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "inputs": [s.to_json() for s in self.inputs],
            "static": [[path, value] for path, value in self.static],
            "outputs": [s.to_json() for s in self.outputs],
            "returns": [[path, value] for path, value in self.returns],
            "symbols": [list(s) for s in self.symbols],
        }

    @classmethod
    def from_json(cls, document: object) -> Signature:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        d = checked_fields(cls, document, "signature")
        return cls(
            inputs=tuple(TensorSpec.from_json(s) for s in checked_list("inputs", d["inputs"])),
            static=tuple((path, value) for path, value in _rows(d, "static", 2)),
            outputs=tuple(TensorSpec.from_json(s) for s in checked_list("outputs", d["outputs"])),
            returns=tuple((path, value) for path, value in _rows(d, "returns", 2)),
            symbols=tuple((n, low, high) for n, low, high in _rows(d, "symbols", 3)),
        )


def check_rule(where: str, rule: object) -> None:
    """Refuse with a ValueError a rule that isn't spelled NAME/REVISION, or None."""
    if rule is not None and not (isinstance(rule, str) and matches(RULE, rule)):
        raise ValueError(f"{where}: {shown(rule)} isn't a rule's name, like timestep/1")


def _rows(document: Mapping[str, Any], name: str, width: int) -> list[Any] | tuple[Any, ...]:
    """The lists of `width` items that stand under `name`."""
    rows = checked_list(name, document.get(name, ()))
    for row in rows:
        if len(checked_list(f"an entry of {name}", row)) != width:
            raise ValueError(f"{name}: {shown(row)} hasn't {width} entries")
    return rows


def flatten(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, leaf) of every leaf below `value`, and (path, marker) of every container.

    A container's marker is its kind with its length or keys, so that an empty dict isn't None and a
    list isn't a tuple. Dicts are walked in sorted order.

    Raises:
        ValueError: a dict key that isn't a string, or that holds a dot.
    """
    if isinstance(value, Mapping):
        keys = sorted(value)
        if any(not isinstance(k, str) or "." in k for k in keys):
            raise ValueError(f"{path or 'the call'}: keys must be strings without dots: {keys}")
        yield path, {"dict": keys}
        for key in keys:
            yield from flatten(value[key], f"{path}.{key}" if path else key)
    elif type(value) in (list, tuple):
        yield path, {type(value).__name__: len(value)}  # type: ignore[arg-type]
        for i, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            yield from flatten(item, f"{path}.{i}" if path else str(i))
    else:
        yield path, value
