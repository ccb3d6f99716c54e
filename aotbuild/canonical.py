"""Canonical JSON: the one byte string that a document hashes as, and the types of what is in it.

Knows nothing of what it means.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field
from functools import lru_cache
from typing import Any, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_WHOLE = frozenset({int})
_SEAL = b',"sha256":"%b"}\n'
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_FIELDS: dict[type[Any], tuple[frozenset[str], frozenset[str]]] = {}
"""What `_fields_of` found: a manifest asks for one class thousands of times."""


def canonical_bytes(value: object) -> bytes:
    """`value` as UTF-8 JSON with sorted keys and no spaces; NaN and infinities are refused."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def parse_json(data: bytes | str, *, unique: bool = False) -> Any:
    """What a JSON document from outside says; whatever is wrong with it is a ValueError.

    So are numbers and text that no canonical document holds: NaN, infinities, lone surrogates.

    Args:
        unique: refuse an object with one name twice, too. What is compared with its canonical
            bytes needs no such check.
    """
    hook = _object if unique else None
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        found = json.loads(
            text, parse_constant=_number, parse_float=_number, object_pairs_hook=hook
        )
    except RecursionError as e:
        raise ValueError("it is nested deeper than any such document") from e
    if _SURROGATE.search(text):
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {shown(text)}, which is no number")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(n for n, _ in pairs if sum(n == m for m, _ in pairs) > 1)
        raise ValueError(f"it has {shown(twice)} twice")
    return found


def check_format(found: object, known: int) -> None:
    """Refuse with a ValueError a document of another format version, and say what helps."""
    if type(found) is int and found == known:
        return
    if type(found) is not int or found < 0:
        raise ValueError(f"format {shown(found)} is unknown; this aotbuild reads {known}")
    age, help_ = ("newer", "update aotbuild") if found > known else ("older", "make it again")
    raise ValueError(
        f"it is of format {found}, {age} than format {known}, which this aotbuild reads: {help_}"
    )


def digest(value: object) -> str:
    """Hex sha256 of the canonical bytes of `value`."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def sealed(value: object) -> bytes:
    """The canonical bytes of an object, its sha256 as the last entry, and a line's end."""
    body = canonical_bytes(value)
    return body[:-1] + _SEAL % hashlib.sha256(body).hexdigest().encode()


def is_sealed(data: bytes) -> bool:
    """Whether the sha256 at the end of `data` is that of the object before it."""
    body = data[: -len(_SEAL % bytes(64))] + b"}"
    return data.endswith(_SEAL % hashlib.sha256(body).hexdigest().encode())


def check_texts(where: str, record: object, *names: str) -> None:
    """Refuse with a ValueError a record of which one of the fields `names` isn't text of one line.

    People read these in tables and terminals, which take other characters for commands.
    """
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{where}: {name} is {shown(value)}, not text that can be shown")


def are_sizes(values: object) -> bool:
    """Whether it is a tuple of whole numbers from 0 on; `true` isn't one."""
    return (
        isinstance(values, tuple)
        and _WHOLE.issuperset(map(type, values))
        and min(values, default=0) >= 0
    )


def check_sizes(where: str, values: object) -> None:
    """Refuse with a ValueError what `are_sizes` doesn't take."""
    if not are_sizes(values):
        raise ValueError(f"{where} is {shown(values)}, not a list of whole numbers from 0 on")


def checked_list(where: str, value: object) -> list[Any] | tuple[Any, ...]:
    """`value`, which must be a list.

    Raises:
        ValueError: it isn't.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} is {shown(value)}, not a list")
    return value


@lru_cache(maxsize=1024)
def matches(pattern: str, text: str) -> bool:
    """Whether all of `text` is of the pattern; remembered, since few words come very often."""
    return re.fullmatch(pattern, text, re.ASCII) is not None


def shown(value: object) -> str:
    """The beginning of a value as it is written, for a sentence of an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def are_numbers(values: Iterable[object]) -> bool:
    """Whether all are numbers, whole or not; `true` isn't one."""
    return set(map(type, values)) <= {int, float}


def checked_fields(cls: type[Any], document: object, where: str) -> dict[str, Any]:
    """The entries of `document` for the dataclass `cls`: none unknown, none missing.

    Raises:
        ValueError: naming the unknown or missing field, and `where` it was.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{where}: expected an object, found {type(document).__name__}")
    known, required = _FIELDS.get(cls) or _FIELDS.setdefault(cls, _fields_of(cls))
    if required <= document.keys() <= known:
        return dict(document)
    unknown = sorted(document.keys() - known)
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}; known are {sorted(known)}")
    missing = next(name for name in cls.__dataclass_fields__ if name in required - document.keys())
    raise ValueError(f"{where}: field {missing!r} is missing")


def _fields_of(cls: type[Any]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of a dataclass's fields, and of those without a default."""
    fields: dict[str, Field[Any]] = cls.__dataclass_fields__
    required = {
        n for n, f in fields.items() if f.default is MISSING and f.default_factory is MISSING
    }
    return frozenset(fields), frozenset(required)
