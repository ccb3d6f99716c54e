"""A recipe written as the TOML that reads back to it; only what differs from the defaults.

What comments say beside it is the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from aotbuild.recipe import CallRecipe, ComponentRecipe, Recipe


def to_toml(recipe: Recipe, comments: Mapping[str, str] | None = None) -> str:
    """The document of `recipe`, tables in the order in which the shipped ones have them.

    Args:
        recipe: what to write.
        comments: by table, "call.tensors", and "" for the top: lines to stand above it.
    """
    return "\n".join(_lines(recipe, comments or {})).lstrip("\n") + "\n"


def _lines(recipe: Recipe, comments: Mapping[str, str]) -> Iterator[str]:
    yield from _comment("", comments)
    yield from _entries(recipe, skip=("components", "call"))
    for name, component in recipe.components.items():
        yield from _header(f"components.{_key(name)}", comments)
        yield from _entries(component, skip=("inductor",))
        if component.inductor:
            yield from _header(f"components.{_key(name)}.inductor", comments)
            yield from (f"{_key(k)} = {_value(v)}" for k, v in component.inductor.items())
    yield from _header("call", comments)
    tables = ("tensors", "lengths", "variants")
    yield from _entries(recipe.call, skip=tables)
    for table in tables:
        if items := getattr(recipe.call, table):
            yield from _header(f"call.{table}", comments)
            yield from (f"{_key(k)} = {_value(v)}" for k, v in items.items())


def _header(table: str, comments: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield from _comment(table, comments)
    yield f"[{table}]"


def _comment(table: str, comments: Mapping[str, str]) -> Iterator[str]:
    yield from (f"# {line}" for line in comments.get(table, "").splitlines())


def _entries(
    item: Recipe | CallRecipe | ComponentRecipe, *, skip: tuple[str, ...]
) -> Iterator[str]:
    for name, value in _changed(item).items():
        if name not in skip:
            yield f"{_key(name)} = {_value(value)}"


def _changed(item: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values aren't their defaults, required ones always."""
    changed = {}
    for field in fields(item):
        value = getattr(item, field.name)
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        if made is MISSING or value != made:
            changed[field.name] = value
    return changed


def _key(name: str) -> str:
    plain = name.replace("_", "").replace("-", "")
    return name if plain.isascii() and plain.isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if is_dataclass(value):
        return _value(_changed(value))
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    # Of the scalars JSON and TOML write alike, but for DEL, which no name here holds.
    return json.dumps(value)
