"""Artifacts of a collection brought into a store: each file hashed, the whole verified, then added.

Which ones is decided elsewhere (`loaders.remote`, `commands`).
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from aotbuild.cache.artifact import MANIFEST, VERIFICATIONS, Entry, read_entry
from aotbuild.cache.collection import INDEX, Index
from aotbuild.cache.files import FileRecord
from aotbuild.cache.hub import Hub
from aotbuild.cache.item import Item
from aotbuild.cache.library import digest_of, open_file
from aotbuild.cache.records import read_records
from aotbuild.cache.store import Store
from aotbuild.errors import IntegrityError, ManifestError

log = logging.getLogger(__name__)


def fetch_index(hub: Hub, repository: str, commit: str) -> Index:
    """The index of a collection at a commit; read anew where what the client cached isn't one.

    Raises:
        SourceError, HubError: there is none, or the Hub can't be reached.
        ManifestError: it can't be used.
    """
    where = f"{INDEX} of {repository}"
    try:
        return Index.from_bytes(hub.read(repository, commit, INDEX), where=where)
    except ManifestError as e:
        log.warning("%s Asking the Hub again.", e)
        return Index.from_bytes(hub.read(repository, commit, INDEX, again=True), where=where)


def find_here(store: Store, item: Item, *, exact: bool = False) -> Entry | None:
    """The artifact in the store, if it is there; its bytes are hashed when it is loaded.

    Args:
        exact: its manifest, too, must be the one that the index or lockfile vouches for. Builds of
            one key have the same package, and manifests that differ in where they were made.

    Raises:
        IntegrityError: the store has its key with another package, or another manifest.
    """
    entry = store.get(item.key)
    if entry is not None and set(entry.manifest.files) != set(item.code):
        raise IntegrityError(
            f"The store {store.root} has the key {item.key[:12]} with other bytes than the "
            f"collection's: one of the builds isn't reproducible. `aotbuild prune {item.key[:12]}` "
            "removes the store's."
        )
    if entry is not None and exact and _manifest_digest(entry) != _manifest_digest(item):
        raise IntegrityError(
            f"The store {store.root} has {item.key[:12]} with another manifest than the one that "
            "is vouched for: built here, or published by somebody else. "
            f"`aotbuild prune {item.key[:12]}` removes the store's; then it is fetched."
        )
    return entry


def _manifest_digest(artifact: Entry | Item) -> str:
    if isinstance(artifact, Entry):
        return hashlib.sha256(artifact.manifest.to_bytes()).hexdigest()
    return next(f.sha256 for f in artifact.files if f.name == MANIFEST)


def fetch(
    hub: Hub, store: Store, repository: str, commit: str, item: Item, *, exact: bool = False
) -> Entry:
    """The artifact, from the store if it is there, else from the Hub into it.

    Args:
        exact: see `find_here`.

    Raises:
        SourceError, HubError: the Hub hasn't got a file of it, or can't be reached.
        ArtifactError: what the Hub sends isn't what the index says.
        StoreError: the store can't be written.
    """
    found = find_here(store, item, exact=exact)
    if found is not None:
        return found
    with store.lock(item.key):
        found = find_here(store, item, exact=exact)  # whoever had the lock may have brought it
        if found is not None:
            return found
        with store.staging() as root:
            for record in item.files:
                _fetch_file(hub, repository, commit, item.folder, record, root)
            if read_entry(root / item.folder).manifest.key != item.key:
                raise IntegrityError(
                    f"{repository}: the manifest in {item.folder} is of another key than the index "
                    "says. Nothing of it was kept; tell whoever published it."
                )
            entry = store.add(root / item.folder)
    log.info("fetched %s from %s", item.folder, repository)
    return entry


def fetch_records(
    hub: Hub, store: Store, repository: str, commit: str, item: Item, entry: Entry
) -> int:
    """How many verification records the store hadn't got of an artifact that it has.

    Raises:
        SourceError, HubError, IntegrityError, StoreError: as `fetch`.
    """
    wanted = [f for f in item.files if f.name.startswith(VERIFICATIONS)]
    missing = [f for f in wanted if not (entry.folder / f.name).exists()]
    if not missing:
        return 0
    with store.staging() as root:
        for file in missing:
            _fetch_file(hub, repository, commit, item.folder, file, root)
        records = list(read_records(root / item.folder / VERIFICATIONS, item.key))
    for record in records:
        store.add_verification(entry, record)
    return len(records)


def _fetch_file(
    hub: Hub, repository: str, commit: str, folder: str, record: FileRecord, root: Path
) -> None:
    """One file below `root`, of the recorded digest; asked for again if it isn't at first."""
    name = f"{folder}/{record.name}"
    found = ("", 0)
    for again in (False, True):
        path = hub.download(repository, commit, name, root, again=again)
        fd = open_file(path.parent, path.name)
        try:
            found = digest_of(fd)
        finally:
            os.close(fd)
        if found == (record.sha256, record.bytes):
            return
    raise IntegrityError(
        f"The Hub sent another {name} of {repository} at {commit[:12]} than the index says, twice: "
        f"{found[1]} bytes with sha256 {found[0][:12]}, expected {record.bytes} with "
        f"{record.sha256[:12]}. Nothing of it was kept; tell whoever published it."
    )
