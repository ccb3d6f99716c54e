"""A document as a dataclass: every field known and of its type, with the nearest name if not.

Knows nothing of what the dataclasses mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuse with a ValueError a `value` that isn't `allowed`, naming the nearest that is."""
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"{name}: {value!r} is none of {', '.join(allowed)}{hint}")


def read(cls: Any, document: object, where: str) -> Any:
    """`document` as the dataclass `cls`, every field checked against its annotation."""
    if not isinstance(document, Mapping):
        raise ValueError(f"{where or 'the recipe'}: expected a table, found {document!r}")
    known = {f.name for f in fields(cls)}
    for name in document:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{_join(where, name)}: unknown field{hint}")
    for f in fields(cls):
        if f.name not in document and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{_join(where, f.name)}: this field is required, and missing")
    hints = get_type_hints(cls)
    values = {n: _convert(hints[n], v, _join(where, n)) for n, v in document.items()}
    try:
        return cls(**values)
    except ValueError as e:
        raise ValueError(f"{where}: {e}" if where else str(e)) from e


def _convert(hint: Any, value: object, where: str) -> Any:
    if hasattr(hint, "__dataclass_fields__"):
        return read(hint, value, where)
    origin = getattr(hint, "__origin__", None)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: expected a table, found {value!r}")
        inner = get_args(hint)[1]
        return {str(k): _convert(inner, v, _join(where, str(k))) for k, v in value.items()}
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{where}: expected a list, found {value!r}")
        return tuple(_convert(get_args(hint)[0], v, where) for v in value)
    allowed = get_args(hint) or (hint,)
    record = next((a for a in allowed if hasattr(a, "__dataclass_fields__")), None)
    if record is not None and value is not None:
        return read(record, value, where)
    if float in allowed and type(value) is int and int not in allowed:
        return float(value)
    if type(value) not in allowed:
        names = ", ".join(t.__name__ for t in allowed if t is not type(None))
        raise ValueError(f"{where}: expected {names}, found {value!r}")
    return value


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
