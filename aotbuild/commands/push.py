"""`push`: artifacts of the store into a collection on the Hub; `cache.publish` commits them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from aotbuild.cache.artifact import Entry
from aotbuild.cache.collection import describe_entry
from aotbuild.cache.hub import Hub
from aotbuild.cache.licences import base_repositories, check_weights, facts_of
from aotbuild.cache.publish import Published, publish
from aotbuild.cache.seals import public_of, read_private
from aotbuild.cache.store import Store
from aotbuild.commands.opening import open_store
from aotbuild.commands.output import human_bytes, json_option, print_json, store_option
from aotbuild.commands.selecting import Selection, selecting
from aotbuild.errors import SourceError, UsageError


@click.command()
@click.argument("repository", metavar="REPO")
@selecting
@click.option("--all", "everything", is_flag=True, help="All that the store has.")
@click.option("--private", is_flag=True, help="Make the repository a private one.")
@click.option("--license", "licence", metavar="ID", help="Of the card.  [default: the base's]")
@click.option(
    "--sign",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="KEY.pem",
    help="Vouch for what is pushed with this Ed25519 key.",
)
@store_option
@json_option
def push(
    repository: str,
    selection: Selection,
    everything: bool,
    private: bool,
    licence: str | None,
    sign: Path | None,
    store: Path,
    as_json: bool,
) -> None:
    """Put artifacts of the store into the collection REPO on the Hub, which is made if need be.

    Name them by the beginnings of their keys, by the options, or with --all. What others put there
    stays; every file is hashed before it goes.
    """
    if selection.empty and not everything:
        raise UsageError(
            "Nothing said to push: give beginnings of keys, --recipe NAME, --component NAME or "
            "--gpu NAME; --all pushes all that the store has."
        )
    key = None if sign is None else read_private(sign)
    opened = open_store(store)
    entries = [e for e in opened.entries() if isinstance(e, Entry)]
    by_key = {e.manifest.key: e for e in entries}
    chosen = selection.of((describe_entry(e) for e in entries), str(opened.root))
    named = [by_key[item.key] for item in chosen]
    done = put(Hub(), repository, opened, named, licence=licence, private=private, key=key)
    if key is not None:
        click.echo(f"signed by {public_of(key)}", err=True)
    _print(done, as_json)


def put(
    hub: Hub,
    repository: str,
    store: Store,
    entries: Sequence[Entry],
    *,
    licence: str | None = None,
    private: bool = False,
    key: Any = None,
) -> Published:
    """Verify `entries` of the store, and add them to the collection with all that a card says.

    Raises:
        ArtifactError: one of them isn't what its manifest says.
        UsageError: weights that may not be public.
        SourceError, HubError, IntegrityError, ManifestError: see `cache.publish.publish`.
    """
    for entry in entries:
        store.verify(entry)
    items = [describe_entry(e) for e in entries]
    bases = base_repositories(hub, items)
    check_weights(items, bases, private=_is_private(hub, repository, private))
    facts = facts_of(bases, licence)
    return publish(hub, repository, entries, facts, private=private, key=key)


def _is_private(hub: Hub, repository: str, private: bool) -> bool:
    """Whether the repository is private, or will be where it isn't there yet."""
    try:
        return hub.look(repository).private
    except SourceError:
        return private


def _print(done: Published, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = {
            "repository": done.repository,
            "revision": done.commit,
            "added": [{"key": i.key, "component": i.component} for i in done.added],
            "artifacts": done.total,
        }
        print_json(document)
        return
    for item in done.added:
        click.echo(f"added  {item.folder}  {human_bytes(item.bytes)}")
    if not done.added:
        click.echo("The collection has all of it already.")
    click.echo(f"{done.repository} has {done.total} artifacts now; to load them:")
    click.echo(f'    aotbuild.load(pipe, "{done.repository}", revision="{done.commit}")')
