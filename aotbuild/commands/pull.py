"""`pull` and `prefetch`: artifacts from the Hub into the store, checked; neither needs torch."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aotbuild import probe
from aotbuild.cache.artifact import Entry
from aotbuild.cache.backend import AOT
from aotbuild.cache.fetch import fetch, fetch_index, fetch_records
from aotbuild.cache.hub import Hub
from aotbuild.cache.item import Item
from aotbuild.cache.lockfile import read_lock
from aotbuild.cache.pinning import check_owner, pinned
from aotbuild.cache.seals import check_trusted
from aotbuild.cache.store import Store
from aotbuild.commands.output import human_bytes, json_option, print_json, store_option
from aotbuild.commands.selecting import Selection, selecting, trust_option


@click.command()
@click.argument("repository", metavar="REPO")
@selecting
@click.option("--revision", metavar="COMMIT", help="40 hex digits.")
@click.option("--allow-unpinned", is_flag=True, help="Take what a branch is at now.")
@trust_option
@store_option
@json_option
def pull(
    repository: str,
    selection: Selection,
    revision: str | None,
    allow_unpinned: bool,
    trusted: tuple[str, ...],
    store: Path,
    as_json: bool,
) -> None:
    """Bring artifacts of the collection REPO into the store: those that are named, or all."""
    check_owner(repository, probe.allowed_owners())
    hub = Hub()
    commit = pinned(hub, repository, revision, allow_unpinned=allow_unpinned, shell=True)
    index = fetch_index(hub, repository, commit)
    chosen = selection.of(index.items, repository)
    check_trusted(chosen, trusted)
    exact = bool(trusted)
    _bring(hub, Store(store), repository, commit, chosen, exact=exact, as_json=as_json)


@click.command()
@click.argument("lockfile", type=click.Path(dir_okay=False, path_type=Path))
@selecting
@trust_option
@store_option
@json_option
def prefetch(
    lockfile: Path, selection: Selection, trusted: tuple[str, ...], store: Path, as_json: bool
) -> None:
    """Bring what LOCKFILE names into the store, ready to start from: for building images.

    Afterwards `aotbuild.load(pipe, LOCKFILE)` needs no network and writes nothing.
    """
    lock = read_lock(lockfile)
    check_owner(lock.repository, probe.allowed_owners())
    chosen = selection.of(lock.items, str(lockfile))
    check_trusted(chosen, trusted)
    opened = Store(store)
    place = lock.repository, lock.revision
    for entry in _bring(Hub(), opened, *place, chosen, exact=True, as_json=as_json):
        if entry.manifest.backend == AOT:
            os.close(opened.open_library(entry))


def _bring(
    hub: Hub,
    store: Store,
    repository: str,
    commit: str,
    items: tuple[Item, ...],
    *,
    exact: bool,
    as_json: bool,
) -> list[Entry]:
    """The artifacts in the store, each verified; says which."""
    entries = []
    for item in items:
        entry = fetch(hub, store, repository, commit, item, exact=exact)
        fetch_records(hub, store, repository, commit, item, entry)
        store.verify(entry)
        entries.append(entry)
        if not as_json:
            click.echo(f"{entry.folder}  {human_bytes(item.bytes)}")
    if as_json:
        rows = [
            {"key": e.manifest.key, "component": e.manifest.component, "path": str(e.folder)}
            for e in entries
        ]
        print_json({"repository": repository, "revision": commit, "artifacts": rows})
    return entries
