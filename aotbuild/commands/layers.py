"""What `plan` says of int8: which linear layers are quantized, which aren't, and why."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from aotbuild.build.request import Planned
from aotbuild.commands.output import print_table


def print_layers(planned: Sequence[Planned]) -> None:
    """A table per unit or kind of block that has layers, those of one shape and fate in a line."""
    seen: list[tuple[str, tuple[dict[str, Any], ...]]] = []
    for p in planned:
        if not p.layers or (p.component, p.layers) in seen:
            continue
        seen.append((p.component, p.layers))
        click.echo(f"\n{summary(p)}")
        print_table(("layers", "in", "out", "int8", "the first of them"), _rows(p.layers))
    for note in unmatched(planned):
        click.echo(f"note: {note}")


def unmatched(planned: Iterable[Planned]) -> list[str]:
    """What filters name that is in none of a component's layers: misspelt, or another model's."""
    layers: dict[str, dict[str, dict[str, Any]]] = {}
    filters: dict[str, dict[str, Any]] = {}
    for p in planned:
        name = p.component.partition(".")[0]
        rule = p.job["recipe"]["components"].get(name, {}).get("int8")
        if p.layers and not p.blocks and rule is not None:
            layers.setdefault(name, {}).update({layer["path"]: layer for layer in p.layers})
            filters[name] = rule
    return [note for name, rule in filters.items() for note in _unmatched(name, rule, layers[name])]


def _unmatched(
    name: str, rule: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    shapes = {(layer["in_features"], layer["out_features"]) for layer in layers.values()}
    widths = {width for shape in shapes for width in shape}
    named = [
        ("skip_shapes", [list(s) for s in rule["skip_shapes"] if tuple(s) not in shapes]),
        ("skip_layers", [p for p in rule["skip_layers"] if not fnmatch.filter(layers, p)]),
        ("pointwise_channels", [n for n in rule["pointwise_channels"] if n not in widths]),
    ]
    for field, odd in named:
        if odd:
            what = ", ".join(map(str, odd))
            yield f"components.{name}.int8.{field}: no layer of these calls is {what}"


def summary(planned: Planned) -> str:
    """One line: how many of the unit's linear layers are quantized."""
    admitted = sum(layer["reason"] is None for layer in planned.layers)
    text = f"{planned.component}: int8dq in {admitted} of {len(planned.layers)} linear layers"
    return text if admitted else f"{text}; it is built unquantized"


def _rows(layers: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for layer in layers:
        fate = "yes" if layer["reason"] is None else f"no: {layer['reason']}"
        shape = (str(layer["in_features"]), str(layer["out_features"]), fate)
        groups.setdefault(shape, []).append(layer["path"])
    return [(str(len(paths)), *shape, paths[0]) for shape, paths in sorted(groups.items())]
