"""`prune`: what to remove from a store, said on the command line; `cache.prune` removes it."""

from __future__ import annotations

import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from aotbuild.cache.lockfile import read_lock
from aotbuild.cache.prune import Pruned, Removal
from aotbuild.commands.opening import check_known, open_store
from aotbuild.commands.output import human_bytes, json_option, print_json, store_option
from aotbuild.errors import StoreError, UsageError

_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@click.command()
@click.argument("key", required=False)
@click.option("--broken", is_flag=True, help="What doesn't verify, and what dead builds left.")
@click.option(
    "--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="By age in days: 30."
)
@click.option("--max-size", metavar="SIZE", help="The oldest, until SIZE is kept: 5GB.")
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="LOCKFILE",
    help="Neither age nor size removes what it names; may be given again.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@store_option
@json_option
def prune(
    key: str | None,
    broken: bool,
    older_than: float | None,
    max_size: str | None,
    keep: tuple[Path, ...],
    dry_run: bool,
    store: Path,
    as_json: bool,
) -> None:
    """Remove artifacts: those whose keys begin with KEY, broken ones, old ones, or the excess."""
    key = (key or "").strip().lower()
    if not key and not broken and older_than is None and max_size is None:
        raise UsageError(
            "Nothing said to remove: give the beginning of a key, --broken, --older-than DAYS or "
            "--max-size SIZE; --dry-run shows what would go."
        )
    opened = open_store(store)
    max_bytes = None if max_size is None else parse_size(max_size)
    if key:
        check_known(opened, key)
    pruned = opened.prune(
        broken=broken,
        key=key or None,
        older_than_s=None if older_than is None else older_than * 86400,
        max_bytes=max_bytes,
        now_s=time.time(),
        keep=frozenset(i.key for path in keep for i in read_lock(path).items),
        dry_run=dry_run,
    )
    _print(pruned, dry_run, as_json)


def parse_size(text: str) -> int:
    """Bytes of "5GB" or "300 MB".

    Raises:
        UsageError: it isn't a size, or has no unit: a bare 1 may be meant as a gigabyte.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kB|MB|GB|TB)", text)
    if match is None:
        raise UsageError(f"--max-size {text}: write a size with its unit, like 500MB or 5GB.")
    return int(Decimal(match[1]) * _UNITS[match[2]])


def _print(pruned: Pruned, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "removed": [_to_json(r) for r in pruned.removed],
                "failed": [{**_to_json(r), "error": why} for r, why in pruned.failed],
            }
        )
    else:
        for removal in pruned.removed:
            click.echo(f"{human_bytes(removal.bytes):>9}  {removal.path}  {removal.reason}")
        click.echo(_total(pruned, dry_run))
    if pruned.failed:
        removal, why = pruned.failed[0]
        raise StoreError(
            f"{len(pruned.failed)} of {len(pruned.failed) + len(pruned.removed)} couldn't be "
            f"removed, {removal.path} among them: {why}."
        )


def _total(pruned: Pruned, dry_run: bool) -> str:
    if not pruned.removed and not pruned.failed:
        return "Nothing to remove."
    total = human_bytes(sum(r.bytes for r in pruned.removed))
    return f"{'would free' if dry_run else 'freed'} {total}"


def _to_json(removal: Removal) -> dict[str, Any]:
    return {
        "key": removal.key,
        "path": str(removal.path),
        "bytes": removal.bytes,
        "reason": removal.reason,
    }
