"""`list`, `show` and `explain`: what a store holds; nothing here changes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.key import differences
from aotbuild.commands import artifacts
from aotbuild.commands.opening import open_store
from aotbuild.commands.output import (
    human_bytes,
    json_option,
    print_json,
    print_table,
    store_option,
)
from aotbuild.commands.records import case_lines, headline

EXAMPLES = "example_values"
"""Among an artifact's checks the values of its inputs, which tell people nothing."""


@click.command("list")
@store_option
@json_option
def list_artifacts(store: Path, as_json: bool) -> None:
    """List the artifacts of the store, and what in it can't be used."""
    opened = open_store(store)
    found = list(opened.entries())
    entries = [e for e in found if isinstance(e, Entry)]
    broken = [e for e in found if isinstance(e, Broken)]
    if as_json:
        document = {
            "store": str(opened.root),
            "artifacts": [artifacts.to_json(opened, e) for e in entries],
            "broken": [artifacts.broken_json(b) for b in broken],
        }
        print_json(document)
        return
    if not found:
        click.echo(f"No artifacts in {opened.root}. `aotbuild build tiny --gpu cpu` makes some.")
    if entries:
        print_table(artifacts.HEADER, (artifacts.row(opened, e) for e in entries))
    for b in broken:
        click.echo(f"{b.word}: {b.reason}")


@click.command()
@click.argument("key")
@store_option
@json_option
def show(key: str, store: Path, as_json: bool) -> None:
    """Show what the artifact's manifest says. KEY may be the beginning of one."""
    opened = open_store(store)
    entry = opened.find(key)
    records = opened.verifications(entry)
    if as_json:
        document = artifacts.to_json(opened, entry)
        manifest = entry.manifest.to_json()
        print_json({**document, "manifest": manifest, "verifications": list(records)})
        return
    for name, value in _facts(entry):
        click.echo(f"{name:<14}{value}")
    for record in records:
        click.echo(f"{'verification':<14}{headline(record)}")
        for line in case_lines(record):
            click.echo(f"{'':<14}{line}")
    if not records:
        click.echo(
            f"{'verification':<14}none; `aotbuild verify {entry.manifest.key[:12]}` makes one"
        )


@click.command()
@click.argument("key")
@click.argument("other")
@store_option
@json_option
def explain(key: str, other: str, store: Path, as_json: bool) -> None:
    """Say what makes two keys differ, part by part."""
    opened = open_store(store)
    ours, theirs = opened.find(key).manifest, opened.find(other).manifest
    found = list(differences(ours.parts, theirs.parts))
    if as_json:
        lines = [{"path": p, "ours": a, "theirs": b} for p, a, b in found]
        print_json({"keys": [ours.key, theirs.key], "differences": lines})
        return
    if not found:
        click.echo(f"Nothing: both are {ours.key}.")
        return
    if ours.component != theirs.component:
        click.echo(f"Artifacts of two components, {ours.component} and {theirs.component}:")
    for path, a, b in found:
        click.echo(f"{path}: {_short(a)} -> {_short(b)}")


def _facts(entry: Entry) -> list[tuple[str, Any]]:
    m = entry.manifest
    target = m.target
    needs = [f"torch {target.torch}", target.system, target.processor]
    needs += [f"GLIBC {target.glibc}"] if target.glibc else []
    needs += [f"GLIBCXX {target.glibcxx}"] if target.glibcxx else []
    packed = human_bytes(m.package.bytes)
    packed += f", library {human_bytes(m.library.bytes)}" if m.library is not None else ""
    rules = sorted({c.rule for c in m.constants})
    facts: list[tuple[str, Any]] = [
        ("key", m.key),
        ("path", entry.folder),
        ("backend", m.backend),
        ("component", f"{m.component} ({m.module.class_name}.{m.method}, {m.scope})"),
        ("precision", m.precision),
        ("target", f"{target.arch} ({', '.join(needs)})"),
        ("package", packed),
        ("constants", f"{len(m.constants)} by {', '.join(rules) or 'no rule'}"),
    ]
    if m.packed is not None:
        origin = f"{m.packed.checkpoint} at {m.packed.revision}" if m.packed.checkpoint else "files"
        size = human_bytes(m.packed.file.bytes)
        facts.append(("packed", f"{size}, of {origin} with digest {m.packed.digest[:12]}"))
    facts += [("input", line) for line in m.signature.sizes()]
    facts += [("range", f"{s} from {low} to {high}") for s, low, high in m.signature.symbols]
    facts += [("checks", f"{n}: {_short(v)}") for n, v in m.checks.items() if n != EXAMPLES]
    return facts


def _short(value: Any, limit: int = 160) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
