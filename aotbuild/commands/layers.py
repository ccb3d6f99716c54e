"""What `plan` says of int8: which linear layers are quantized, which aren't, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from aotbuild.build.request import Planned
from aotbuild.commands.output import print_table


def print_layers(planned: Iterable[Planned]) -> None:
    """A table per unit or kind of block that has layers, those of one shape and fate in a line."""
    seen: list[tuple[str, tuple[dict[str, Any], ...]]] = []
    for p in planned:
        if not p.layers or (p.component, p.layers) in seen:
            continue
        seen.append((p.component, p.layers))
        click.echo(f"\n{summary(p)}")
        print_table(("layers", "in", "out", "int8", "the first of them"), _rows(p.layers))


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
