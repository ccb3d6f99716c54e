"""`verify`: an artifact held against the eager module, or a rebuild; `build.verify` does it."""

from __future__ import annotations

from pathlib import Path

import click

from aotbuild.cache.store import Store
from aotbuild.commands.output import json_option, print_json, store_option
from aotbuild.commands.quiet import quieten


@click.command()
@click.argument("key")
@click.option("--rebuild", is_flag=True, help="Build it again and compare the bytes too.")
@store_option
@json_option
@click.pass_context
def verify(ctx: click.Context, key: str, rebuild: bool, store: Path, as_json: bool) -> None:
    """Compare the artifact with the eager module on this machine, and keep the record.

    KEY may be the beginning of one. Exit code 1 where the artifact doesn't pass.
    """
    opened = Store(store)
    entry = opened.find(key)
    opened.verify(entry)
    quieten()
    from aotbuild.build.verify import verify_entry

    record = verify_entry(opened, entry, rebuild=rebuild)
    if as_json:
        print_json({"key": entry.manifest.key, "record": record})
    else:
        verdict = "passed" if record["passed"] else "did not pass"
        click.echo(f"{entry.manifest.component} {entry.manifest.key[:12]} {verdict}")
        for name, value in record.items():
            click.echo(f"  {name}: {value}")
    if not record["passed"]:
        ctx.exit(1)
