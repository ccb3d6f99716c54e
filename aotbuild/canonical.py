"""Canonical JSON: the one byte string that a document hashes as. Knows nothing of what is in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field
from typing import Any, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def canonical_bytes(value: object) -> bytes:
    """`value` as UTF-8 JSON with sorted keys and no spaces; NaN and infinities are refused."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def digest(value: object) -> str:
    """Hex sha256 of the canonical bytes of `value`."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def checked_fields(cls: type[Any], document: object, where: str) -> dict[str, Any]:
    """The entries of `document` for the dataclass `cls`: none unknown, none missing.

    Raises:
        ValueError: naming the unknown or missing field, and `where` it was.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{where}: expected an object, found {type(document).__name__}")
    known: dict[str, Field[Any]] = cls.__dataclass_fields__
    unknown = sorted(document.keys() - known.keys())
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; known are {sorted(known)}")
    missing = [
        n
        for n, f in known.items()
        if n not in document and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{where}: field {missing[0]!r} is missing")
    return dict(document)
