"""`lookup`: what collections and the store have for a recipe on a GPU, and how to build the rest.

Reads indexes alone; imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from aotbuild import probe
from aotbuild.cache.artifact import Entry
from aotbuild.cache.backend import AOT
from aotbuild.cache.card import precision, verified_on
from aotbuild.cache.collection import INDEX, describe_entry
from aotbuild.cache.coverage import Machine, select
from aotbuild.cache.fetch import fetch_index
from aotbuild.cache.hub import Hub
from aotbuild.cache.item import Item
from aotbuild.cache.lockfile import read_lock
from aotbuild.cache.store import Store
from aotbuild.commands.artifacts import item_json
from aotbuild.commands.output import (
    human_bytes,
    json_option,
    print_json,
    print_table,
    store_option,
)
from aotbuild.commands.selecting import machine_of, size_of
from aotbuild.errors import SourceError
from aotbuild.recipe import Recipe, load_recipe
from aotbuild.target import Accepted

HEADER = ("component", "resolution", "batch", "variant", "precision", "target", "torch",
          "verified on", "size", "key", "where")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where artifacts were looked for.

    Attributes:
        name: as it is loaded: a collection, a lockfile, a folder.
        commit: of a collection or lockfile.
        items: all that it has.
    """

    name: str
    commit: str | None
    items: tuple[Item, ...]


@click.command()
@click.argument("recipe", metavar="RECIPE|PATH.toml")
@click.option("--gpu", required=True, metavar="NAME|sm_XY|auto|cpu", help="Where it is to run.")
@click.option("--resolution", metavar="WxH", help="In pixels; without it every one is listed.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="REPO, ./FOLDER or ./LOCKFILE; may be given again.  [default: $AOTBUILD_COLLECTIONS]",
)
@store_option
@json_option
def lookup(
    recipe: str,
    gpu: str,
    resolution: str | None,
    sources: tuple[str, ...],
    store: Path,
    as_json: bool,
) -> None:
    """Say which artifacts there are for RECIPE on a GPU, and how to build those that aren't.

    It looks into collections on the Hub at their present commits, and into the store.
    """
    wanted, machine = load_recipe(recipe), machine_of(gpu)
    size = None if resolution is None else size_of(resolution)
    hub, here = Hub(), Store(store)
    found = [open_source(hub, name) for name in sources or probe.default_collections()]
    found.append(Source(name=str(here.root), commit=None, items=stored(here)))
    rows = [
        (source, item)
        for source in found
        for item in select(source.items, recipe=wanted.name, machine=machine, size=size)
    ]
    missing = list(missing_units(wanted, [i for _, i in rows]))
    command = f"aotbuild build {recipe} --gpu {gpu}"
    command += f" --resolution {resolution}" if resolution else ""
    if as_json:
        _print_json(found, rows, missing, command, machine)
    else:
        _print(found, rows, missing, command, machine)


def open_source(hub: Hub, name: str) -> Source:
    """What a collection, a lockfile or a folder has.

    Raises:
        SourceError: there is no such thing.
    """
    if not name.startswith(("/", "./", "../", "~")):
        there = hub.look(name)
        if INDEX not in there.files:
            raise SourceError(f"{name} isn't a collection: it has no {INDEX}.")
        index = fetch_index(hub, name, there.commit)
        return Source(name=name, commit=there.commit, items=index.items)
    path = Path(name).expanduser()
    if path.is_dir():
        return Source(name=name, commit=None, items=stored(Store(path)))
    if not path.exists():
        raise SourceError(
            f"There is no folder or lockfile {path}. `aotbuild build RECIPE --gpu cpu "
            f"--out {path}` makes a folder of artifacts, `aotbuild lock REPO` a lockfile."
        )
    lock = read_lock(path)
    return Source(name=name, commit=lock.revision, items=lock.items)


def stored(store: Store) -> tuple[Item, ...]:
    """The artifacts of a store, as an index would tell of them."""
    return tuple(describe_entry(e) for e in store.entries() if isinstance(e, Entry))


def missing_units(recipe: Recipe, items: list[Item]) -> Iterator[str]:
    """The units of the recipe that none of `items` was compiled ahead of time for."""
    served = {i.component for i in items if i.backend == AOT}
    for name, component in recipe.components.items():
        for method in component.methods:
            unit = name if method == "forward" else f"{name}.{method}"
            if unit not in served:
                yield unit


def _print(
    sources: list[Source],
    rows: list[tuple[Source, Item]],
    missing: list[str],
    command: str,
    machine: Machine,
) -> None:
    for source in sources:
        at = f" at {source.commit}" if source.commit else ""
        click.echo(f"{source.name}{at}: {len(source.items)} artifacts")
    if rows:
        click.echo("")
        print_table(HEADER, (_row(s, i, machine) for s, i in rows))
    click.echo("")
    if not missing:
        asked = command.replace("aotbuild build", "aotbuild plan", 1)
        click.echo(
            "Every component of the recipe has some. Which of its calls have none, and in which "
            f"precision, is what the plan says:\n    {asked}"
        )
        return
    click.echo(f"Nothing for {', '.join(missing)}. To build it:\n    {command}")


def _row(source: Source, item: Item, machine: Machine) -> tuple[str, ...]:
    covers, verdict = item.covers, machine.judge(item)
    note = " (untuned)" if isinstance(verdict, Accepted) and verdict.note else ""
    return (
        item.component,
        covers.resolution or "?",
        str(covers.batch or "?"),
        covers.variant or "?",
        precision(item),
        f"{item.target.arch}{note}",
        item.target.torch,
        ", ".join(verified_on(item)) or "nowhere yet",
        human_bytes(item.bytes),
        item.key[:12],
        source.name,
    )


def _print_json(
    sources: list[Source],
    rows: list[tuple[Source, Item]],
    missing: list[str],
    command: str,
    machine: Machine,
) -> None:
    own = sources[-1]
    here = {i.key for i in own.items}
    artifacts: list[dict[str, Any]] = [
        {
            **item_json(item, source.name, here),
            "source": source.name,
            "revision": source.commit,
            "covers": item.covers.to_json(),
            "target": item.target.to_json(),
            "verified_on": list(verified_on(item)),
        }
        for source, item in rows
    ]
    listed = [{"source": s.name, "revision": s.commit, "artifacts": len(s.items)} for s in sources]
    lacking = [{"component": unit, "command": command} for unit in missing]
    document = {"arch": machine.arch, "sources": listed, "artifacts": artifacts, "missing": lacking}
    print_json(document)
