"""A recipe written as the TOML that reads back to it; only what differs from the defaults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from aotbuild.recipe import CallRecipe, ComponentRecipe, Recipe, TensorRecipe


def to_toml(recipe: Recipe) -> str:
    """The document of `recipe`, tables in the order in which the shipped ones have them."""
    return "\n".join(_lines(recipe)) + "\n"


def _lines(recipe: Recipe) -> Iterator[str]:
    yield from _entries(recipe, skip=("components", "call"))
    for name, component in recipe.components.items():
        yield f"\n[components.{_key(name)}]"
        yield from _entries(component, skip=("inductor",))
        if component.inductor:
            yield f"\n[components.{_key(name)}.inductor]"
            yield from (f"{_key(k)} = {_value(v)}" for k, v in component.inductor.items())
    yield "\n[call]"
    yield from _entries(recipe.call, skip=("tensors", "variants"))
    if recipe.call.tensors:
        yield "\n[call.tensors]"
        for name, tensor in recipe.call.tensors.items():
            yield f"{_key(name)} = {_value(_changed(tensor))}"
    if recipe.call.variants:
        yield "\n[call.variants]"
        yield from (f"{_key(k)} = {_value(v)}" for k, v in recipe.call.variants.items())


def _entries(
    item: Recipe | CallRecipe | ComponentRecipe, *, skip: tuple[str, ...]
) -> Iterator[str]:
    for name, value in _changed(item).items():
        if name not in skip:
            yield f"{_key(name)} = {_value(value)}"


def _changed(item: Recipe | CallRecipe | ComponentRecipe | TensorRecipe) -> dict[str, Any]:
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
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    # Of the scalars JSON and TOML write alike, but for DEL, which no name here holds.
    return json.dumps(value)
