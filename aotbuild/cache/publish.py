"""Artifacts of a store put into a collection on the Hub, beside whatever others put there.

Each commit is made against the commit that was read; who comes second reads again and adds to it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotbuild.cache.artifact import VERIFICATIONS, Entry
from aotbuild.cache.card import Facts, render
from aotbuild.cache.collection import CARD, INDEX, Index, describe_entry
from aotbuild.cache.fetch import fetch_index
from aotbuild.cache.hub import Hub, Repository
from aotbuild.cache.hub_errors import BusyError, ConflictError
from aotbuild.cache.item import Item
from aotbuild.cache.records import read_records, record_bytes
from aotbuild.cache.seals import signed
from aotbuild.errors import HubError, IntegrityError

TRIES = 20
"""How often a commit is made anew that somebody else's came before, or that the Hub failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of a push.

    Attributes:
        commit: what to pin.
        added: artifacts, or records of artifacts, that the collection didn't have.
        total: artifacts that it has now.
        tries: commits that were made or tried.
    """

    repository: str
    commit: str
    added: tuple[Item, ...]
    total: int
    tries: int


def publish(
    hub: Hub,
    repository: str,
    entries: Sequence[Entry],
    facts: Facts,
    *,
    private: bool = False,
    key: Any = None,
    pause_s: float = 0.3,
) -> Published:
    """Add `entries`, which were verified, to the collection, which is made if it isn't there.

    Args:
        facts: what the card says beyond the artifacts.
        private: whether a repository that is made now is; one that is there stays as it is.
        key: a private key to sign the entries with, see `seals`.
        pause_s: what is waited on average after the first conflict.

    Raises:
        SourceError, HubError: the Hub refuses, or fails.
        IntegrityError: the collection has one of the keys with other bytes; or, where it is to be
            signed, with another manifest.
        ManifestError: the collection's index can't be read.
    """
    hub.create(repository, private=private)
    ours = [describe_entry(e) for e in entries]
    if key is not None:
        ours = [signed(i, key) for i in ours]
    by_key = {e.manifest.key: e for e in entries}
    prepared: dict[str, Any] = {}
    last: HubError | None = None
    for turn in range(1, TRIES + 1):
        there = hub.look(repository)
        theirs = read_index(hub, there)
        index, new = theirs.merged(ours)
        if key is not None:
            _check_signed(ours, index)
        if not new:
            return Published(
                repository=repository, commit=there.commit, added=(), total=len(index.items),
                tries=turn - 1,
            )  # fmt: skip
        for item in new:
            _prepare(item, by_key[item.key], theirs, prepared)
        old = hub.read(repository, there.commit, CARD) if CARD in there.files else b""
        card = render(index, repository, facts, dict(there.card), old.decode(errors="replace"))
        texts = {INDEX: index.to_bytes(), CARD: card.encode()}
        try:
            commit = hub.commit(
                repository,
                [*prepared.values(), *(_operation(n, d) for n, d in texts.items())],
                parent=there.commit,
                title=f"Add {len(new)} of {len(index.items)} artifacts",
            )
        except (ConflictError, BusyError) as e:
            last = e
            time.sleep(pause_s * random.uniform(0.5, 1.5) * min(turn, 8))
            continue
        return Published(
            repository=repository, commit=commit, added=new, total=len(index.items), tries=turn
        )
    raise HubError(f"{repository}: {TRIES} commits failed, the last because: {last}") from last


def _check_signed(ours: Sequence[Item], index: Index) -> None:
    """Refuse a push that can't sign what it was to: somebody else's manifest, for the same key."""
    published = {i.key: i for i in index.items}
    for item in ours:
        if not set(item.seals) <= set(published[item.key].seals):
            raise IntegrityError(
                f"{item.component} {item.key[:12]} is published with a manifest that isn't the "
                "store's, by another build of the same key, and what isn't here can't be signed. "
                f"`aotbuild prune {item.key[:12]}`, then `aotbuild pull` it, check and sign that."
            )


def read_index(hub: Hub, there: Repository) -> Index:
    """The collection's index at the commit that was looked at; empty where it has none yet."""
    if INDEX not in there.files:
        return Index()
    return fetch_index(hub, there.name, there.commit)


def _prepare(item: Item, entry: Entry, theirs: Index, prepared: dict[str, Any]) -> None:
    """Operations for the files of `item` that the collection lacks, each made once: an operation
    knows whether its file has been uploaded, so that a second commit sends none again."""
    known = next(({f.name for f in i.files} for i in theirs.items if i.key == item.key), set())
    key = entry.manifest.key
    records = dict(record_bytes(r, key) for r in read_records(entry.folder / VERIFICATIONS, key))
    for file in item.files:
        path = f"{item.folder}/{file.name}"
        if file.name in known:
            prepared.pop(path, None)
        elif path not in prepared:
            record = records.get(file.name.partition("/")[2])
            prepared[path] = _operation(path, record or str(entry.folder / file.name))


def _operation(path: str, content: bytes | str) -> Any:
    from huggingface_hub import CommitOperationAdd

    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=content)
