"""Where each packed constant lies in `constants.safetensors`: the plan alone decides it.

Plain safetensors, so that any reader of those opens it. Writes and reads no file (`build.pack` and
`loaders.packed` do). Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aotbuild.cache.manifest import Constant
from aotbuild.canonical import canonical_bytes, parse_json

ALIGNMENT_BYTES = 64
"""Every constant begins at a multiple of this, so that a mapped file is bound where it lies."""

DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""torch's name -> safetensors' name, bytes of an element."""

_LENGTH_BYTES = 8
_METADATA = {"format": "aotbuild/1"}
_STORED = "stored/1"


@dataclass(frozen=True, slots=True)
class Place:
    """A constant, and the offset in bytes from the start of the file at which it lies."""

    constant: Constant
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole file: its head, length and padding included, each constant in order, its size."""

    head: bytes
    places: tuple[Place, ...]
    bytes: int


def layout_of(plan: Iterable[Constant]) -> Layout:
    """The layout of the constants of `plan`, sorted by name; those of "stored/1" aren't packed.

    The gaps are tensors of bytes named "pad.0", "pad.1", ...: the format allows no holes.

    Raises:
        ValueError: a constant that the format can't hold.
    """
    packed = sorted((c for c in plan if c.rule != _STORED), key=lambda c: c.name)
    entries: dict[str, dict[str, Any]] = {}
    spans: list[tuple[Constant, int, int]] = []
    offset = 0
    for number, constant in enumerate(packed):
        shape = memory_shape(constant)
        if constant.dtype not in DTYPES:
            raise ValueError(f"{constant.name} is {constant.dtype}, which can't be packed")
        name, size = DTYPES[constant.dtype]
        end = offset + size * math.prod(shape)
        _add(entries, constant.name, name, shape, offset, end)
        spans.append((constant, offset, end))
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if offset > end:
            _add(entries, f"pad.{number}", "U8", (offset - end,), end, offset)
    head = _head(entries)
    places = tuple(Place(c, len(head) + begin, len(head) + end) for c, begin, end in spans)
    return Layout(head, places, len(head) + offset)


def fault(head: bytes, layout: Layout) -> str | None:
    """What is wrong with the first bytes of a file that should be laid out so; None if nothing.

    Only the one canonical head passes, so nothing of what it says is ever followed.
    """
    if head == layout.head:
        return None
    if head[:_LENGTH_BYTES] != layout.head[:_LENGTH_BYTES]:
        return "its header has another length than its constants need"
    try:
        found = parse_json(head[_LENGTH_BYTES:])
    except ValueError:
        return "its header isn't JSON"
    if not isinstance(found, dict):
        return "its header isn't an object"
    return next(_differences(found, parse_json(layout.head[_LENGTH_BYTES:])), "it isn't canonical")


def memory_shape(constant: Constant) -> tuple[int, ...]:
    """Its shape in the order of its memory: that of the file, where the strides are permuted.

    Raises:
        ValueError: strides with gaps or overlaps.
    """
    shape = tuple(constant.shape[i] for i in memory_order(constant))
    strides = tuple(constant.stride[i] for i in memory_order(constant))
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step and 0 not in shape:
            raise ValueError(
                f"{constant.name} has strides {constant.stride}, which can't be packed"
            )
        step *= size
    return shape


def memory_order(constant: Constant) -> tuple[int, ...]:
    """Its dimensions from the widest stride to the narrowest; those of one element stay put."""
    wide = [i for i, size in enumerate(constant.shape) if size != 1]
    moved = iter(sorted(wide, key=lambda i: (-constant.stride[i], i)))
    return tuple(i if size == 1 else next(moved) for i, size in enumerate(constant.shape))


def _add(
    entries: dict[str, dict[str, Any]],
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    begin: int,
    end: int,
) -> None:
    if name in entries or name == "__metadata__":
        raise ValueError(f"{name!r} can't be a packed constant's name, or is there twice")
    entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _head(entries: dict[str, dict[str, Any]]) -> bytes:
    text = canonical_bytes({"__metadata__": _METADATA, **entries})
    text += b" " * (-(_LENGTH_BYTES + len(text)) % ALIGNMENT_BYTES)
    return struct.pack("<Q", len(text)) + text


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            yield f"its entry {name!r} is {found.get(name)}, and must be {expected.get(name)}"
