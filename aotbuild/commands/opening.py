"""The store that a command reads, and a word where there is none; building makes its own."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from aotbuild.cache.store import Store
from aotbuild.errors import UsageError


def open_store(folder: Path) -> Store:
    """The store at `folder`; where nothing is, stderr says so if it is the default one.

    Raises:
        UsageError: `--store` names a folder that doesn't exist.
    """
    store = Store(folder)
    if store.root.exists():
        return store
    if click.get_current_context().get_parameter_source("store") is ParameterSource.COMMANDLINE:
        raise UsageError(
            f"There is no store at {store.root}: no such folder. `aotbuild list` reads the default "
            f"one; `aotbuild build RECIPE --gpu cpu --store {folder}` makes one there."
        )
    click.echo(f"There is no store at {store.root} yet.", err=True)
    return store


def check_known(store: Store, key: str) -> None:
    """Refuse a `key` that no artifact of the store begins with, before anything is done about it.

    Raises:
        UsageError: none does.
    """
    if not store.prune(key=key, dry_run=True).removed:
        raise UsageError(
            f"No artifact in {store.root} has a key that begins with {key!r}. "
            "`aotbuild list` shows them all."
        )
