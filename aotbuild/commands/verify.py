"""`verify`: an artifact held against the eager module, or a rebuild; `build.rebuild` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aotbuild.cache.artifact import Entry
from aotbuild.commands.opening import open_store
from aotbuild.commands.output import json_option, print_json, store_option
from aotbuild.commands.quiet import quieten
from aotbuild.commands.records import case_lines, headline
from aotbuild.errors import UsageError
from aotbuild.recipe import load_recipe


@click.command()
@click.argument("key")
@click.option("--rebuild", is_flag=True, help="Build it again, and compare the bytes instead.")
@click.option(
    "--recipe", "recipe_", metavar="RECIPE|PATH.toml", help="Rebuild by this recipe's components."
)
@store_option
@json_option
@click.pass_context
def verify(
    ctx: click.Context, key: str, rebuild: bool, recipe_: str | None, store: Path, as_json: bool
) -> None:
    """Compare the artifact with the eager module on this machine, and keep the record.

    KEY may be the beginning of one. Exit code 1 where the artifact doesn't pass, or where a rebuild
    gives other bytes.
    """
    if recipe_ is not None and not rebuild:
        raise UsageError("--recipe says what to rebuild by: type --rebuild too.")
    recipe = None if recipe_ is None else load_recipe(recipe_)
    opened = open_store(store)
    entry = opened.find(key)
    opened.verify(entry)
    quieten()
    from aotbuild.build.rebuild import rebuild_entry, verify_entry

    found = rebuild_entry(opened, entry, recipe) if rebuild else verify_entry(opened, entry)
    if as_json:
        print_json({"key": entry.manifest.key, "rebuild" if rebuild else "record": found})
    else:
        (_print_rebuild if rebuild else _print_record)(entry, found)
    if not found["same" if rebuild else "passed"]:
        ctx.exit(1)


def _print_record(entry: Entry, record: dict[str, Any]) -> None:
    click.echo(f"{entry.manifest.component} {entry.manifest.key[:12]} {headline(record)}")
    for line in case_lines(record):
        click.echo(f"  {line}")


def _print_rebuild(entry: Entry, found: dict[str, Any]) -> None:
    name = f"{entry.manifest.component} {entry.manifest.key[:12]}"
    if found["same"]:
        click.echo(f"{name}: the rebuild has the same bytes, sha256 {found['package'][0]}")
    else:
        click.echo(f"{name}: the rebuild differs")
        for what in ("package", "library"):
            click.echo(f"  {what}: recorded {found[what][0]}, rebuilt {found[what][1]}")
        click.echo(f"  sections of the library that differ: {', '.join(found['sections'])}")
    for path, recorded, here in found["differences"]:
        click.echo(f"  {path}: {recorded} -> {here}")
    if not found["same"] and not found["differences"]:
        click.echo("  every part of the key is the same: the build isn't reproducible here")
