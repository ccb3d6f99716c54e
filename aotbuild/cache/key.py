"""The key: sha256 over the ordered, named parts that decide an artifact's bytes.

Gathers none of them (`build.run` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from aotbuild.canonical import check_texts, checked_fields, digest

PART_NAMES = (
    "rules",
    "architecture",
    "source",
    "signature",
    "preparation",
    "options",
    "tuning",
    "target",
    "versions",
    "toolchain",
    "weights",
)
"""Fixed order. `rules` is the revision of our own lowering and repacking; `weights` is null unless
the artifact carries constants."""

ABSENT = "(absent)"
"""What a difference shows where one side has no such entry."""

RULES_REVISION = 2
"""Raised whenever lowering, linking or repacking changes what bytes come out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One named input of the build, with the digest it counts by.

    Attributes:
        name: one of `PART_NAMES`.
        value: the very object the build used, as JSON.
        sha256: hex digest of `value`'s canonical bytes.
    """

    name: str
    value: Any
    sha256: str

    @classmethod
    def of(cls, name: str, value: Any) -> Part:
        """The part `name` with its digest computed."""
        return cls(name=name, value=value, sha256=digest(value))

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {"name": self.name, "value": self.value, "sha256": self.sha256}

    @classmethod
    def from_json(cls, document: object) -> Part:
        """The inverse of `to_json`; a digest that isn't the value's is a ValueError."""
        part = cls(**checked_fields(cls, document, "key part"))
        check_texts("key part", part, "name")
        if part.sha256 != digest(part.value):
            raise ValueError(f"key part {part.name!r}: its sha256 isn't that of its value")
        return part


def make_parts(values: dict[str, Any]) -> tuple[Part, ...]:
    """The parts in their fixed order; `values` must name each exactly once."""
    if set(values) != set(PART_NAMES):
        odd = sorted(set(values) ^ set(PART_NAMES))
        raise ValueError(f"key parts missing or unknown: {odd}")
    return tuple(Part.of(name, values[name]) for name in PART_NAMES)


def key_of(parts: Iterable[Part]) -> str:
    """64 hex digits: the digest over the ordered (name, digest) pairs."""
    return digest([[p.name, p.sha256] for p in parts])


def differences(ours: Iterable[Part], theirs: Iterable[Part]) -> Iterator[tuple[str, Any, Any]]:
    """(path, our value, their value) of everything that makes two keys differ.

    Descends into objects, so that one changed compiler option is one line.
    """
    left, right = {p.name: p.value for p in ours}, {p.name: p.value for p in theirs}
    for name in PART_NAMES:
        yield from json_differences(name, left.get(name), right.get(name))


def json_differences(path: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    """(path, left value, right value) of each leaf in which two documents differ; 1 isn't true."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted({*left, *right}):
            inner = f"{path}.{name}" if path else name
            yield from json_differences(inner, left.get(name, ABSENT), right.get(name, ABSENT))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from json_differences(f"{path}.{i}" if path else str(i), a, b)
    elif type(left) is not type(right) or left != right:
        yield path, left, right
