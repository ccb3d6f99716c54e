"""The store: a local folder of artifacts, written by many, never seen half written.

Decides nothing about fit (`match` does).

<root>/
    artifacts/<component>/<arch>/<signature slug>-<key, 12 hex>/    see docs/format.md
    libraries/<sha256>.so       extracted once, hashed at every opening
    staging/<pid>-<random>/     a builder's; swept once nobody holds its lock
    locks/<key>.lock            held by whoever builds that key
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aotbuild.cache import catalog, disk, library, locks
from aotbuild.cache.artifact import (
    VERIFICATIONS,
    Broken,
    Entry,
    verify_artifact,
)
from aotbuild.cache.extracted import check_extracted, open_extracted
from aotbuild.cache.prune import Pruned, choose, remove
from aotbuild.cache.records import read_records, record_bytes
from aotbuild.cache.staging import scratch
from aotbuild.errors import ArtifactError, IntegrityError, StoreError


class Store:
    """Artifacts below `root`, which need not exist yet, and need not be writable to be read.

    Source of the rules: docs/format.md.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root).expanduser().absolute()

    # Reading

    def folders(self) -> list[Path]:
        """Where artifacts lie, sorted: unit, architecture, name below "artifacts"."""
        return list(catalog.folders(self.root))

    def entries(self, chosen: Iterable[Path] | None = None) -> Iterator[Entry | Broken]:
        """Every artifact, sorted by folder; what can't be used comes as `Broken` with its reason.

        Args:
            chosen: of `folders`, where only some are wanted: reading one takes milliseconds.

        Raises:
            StoreError: the store is there and can't be read.
        """
        return catalog.entries(self.root, chosen)

    def get(self, key: str) -> Entry | None:
        """The artifact of that whole key, if it is here and readable; nothing of it is hashed."""
        return catalog.get(self.root, key)

    def find(self, prefix: str) -> Entry:
        """The one artifact whose key begins with `prefix`.

        Raises:
            UsageError: none does, or several do.
            ArtifactError: it is there, and can't be used.
        """
        return catalog.find(self.root, prefix)

    def verify(self, entry: Entry) -> None:
        """Hash every byte of the artifact again, and the library that was extracted from it.

        Raises:
            ManifestError, IntegrityError: what differs.
        """
        found = verify_artifact(entry.folder)
        if found.manifest != entry.manifest:
            raise IntegrityError(
                f"{entry.folder} isn't the artifact that was listed; list it again."
            )
        check_extracted(self.root, entry)

    def read_member(self, entry: Entry, name: str) -> bytes:
        """One file out of the verified package.

        Raises:
            IntegrityError: the package isn't what the manifest says, or has no such member.
        """
        where = entry.folder / entry.manifest.package.name
        with library.open_package(entry.folder, entry.manifest) as archive:
            return library.read_member(archive, name, where)

    def open_library(self, entry: Entry) -> int:
        """A descriptor of the artifact's `.so`, hashed through that very descriptor.

        The package is hashed every time; the library is extracted into this store the first time,
        or held in memory where the store can't be written or is mounted noexec. The caller closes
        the descriptor.

        Raises:
            IntegrityError: the package, a member of it, or the extracted library was altered.
            StoreError: no space left to extract it.
        """
        return open_extracted(self.root, entry)

    def verifications(self, entry: Entry) -> tuple[dict[str, Any], ...]:
        """The records of the manifest, then those that were added for its key, sorted by name."""
        added = read_records(entry.folder / VERIFICATIONS, entry.manifest.key)
        return (*entry.manifest.verification, *added)

    # Writing

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Be the one process that builds `key`; waits for another that does.

        Raises:
            StoreError: the store can't be written.
        """
        with ExitStack() as held:
            with disk.translated(self.root):
                held.enter_context(locks.hold(self._made("locks") / f"{key}.lock"))
            yield

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A fresh folder inside the store, laid out like one once filled; gone on leaving.

        Raises:
            StoreError: the store can't be written, or fills up while the body runs.
        """
        with ExitStack() as held:
            with disk.translated(self.root):
                folder = held.enter_context(self._scratch())
            with disk.full_translated(self.root):
                yield folder

    def add(self, folder: Path) -> Entry:
        """Take a staged artifact in, whole or not at all; one that is here already is kept.

        A folder from `staging` is moved, one from elsewhere copied.

        Raises:
            ArtifactError: what is staged isn't a whole artifact.
            StoreError: the store can't be written, or is full.
        """
        folder = Path(folder).absolute()
        staged = verify_artifact(folder)
        with disk.translated(self.root):
            if folder.is_relative_to(self.root / "staging"):
                return self._take(staged)
            with self._scratch() as own:
                shutil.copytree(folder, own / "copy", symlinks=True)
                return self._take(verify_artifact(own / "copy"))

    def add_verification(self, entry: Entry, record: dict[str, Any]) -> Path:
        """Put a record beside the artifact, outside its digest; the same one twice is one file.

        Raises:
            StoreError: the store can't be written, or the record isn't this artifact's.
        """
        name, data = record_bytes(record, entry.manifest.key)
        folder = entry.folder / VERIFICATIONS
        with disk.translated(self.root), self._scratch() as own:
            folder.mkdir(exist_ok=True)
            disk.write(own / name, data)
            (own / name).replace(folder / name)
            disk.sync(folder)
        return folder / name

    def prune(
        self,
        *,
        broken: bool = False,
        key: str | None = None,
        older_than_s: float | None = None,
        max_bytes: int | None = None,
        now_s: float | None = None,
        keep: Collection[str] = (),
        dry_run: bool = False,
    ) -> Pruned:
        """Remove what any of the arguments names; what can't be removed is reported, the rest goes.

        Args:
            broken: whatever doesn't verify. What dead builders left goes in any case.
            key: artifacts whose keys begin with this.
            older_than_s: artifacts that were built longer ago.
            max_bytes: the oldest, until the store is no larger.
            now_s: seconds since the epoch, that `older_than_s` counts back from and needs.
            keep: whole keys that neither age nor size removes.
            dry_run: only say what would go.
        """
        assert older_than_s is None or now_s is not None, "an age counts from some time"
        if not self.root.is_dir():
            return Pruned(())
        with ExitStack() as held, disk.translated(self.root):
            if not dry_run:
                trash = held.enter_context(self._scratch())
                held.enter_context(locks.hold(self._made("locks") / "add.lock"))
            chosen = choose(
                self.entries(),
                self.root / "libraries",
                broken=broken,
                key=key,
                older_than_s=older_than_s,
                max_bytes=max_bytes,
                now_s=now_s or 0.0,
                keep=keep,
            )
            return Pruned(chosen) if dry_run else remove(chosen, trash, self.root / "artifacts")

    # Inside

    def _take(self, staged: Entry) -> Entry:
        folder = self.root / staged.manifest.folder
        disk.sync_tree(staged.folder)
        with locks.hold(self._made("locks") / "add.lock"):
            if os.path.lexists(folder):
                try:
                    return self._same(verify_artifact(folder), staged)
                except ArtifactError:
                    with self._scratch() as aside:
                        folder.rename(aside / "broken")
            self._made(str(folder.parent.relative_to(self.root)))
            staged.folder.rename(folder)
            disk.sync(folder.parent)
        return Entry(folder, staged.manifest)

    def _same(self, here: Entry, staged: Entry) -> Entry:
        if here.manifest.key != staged.manifest.key:
            raise StoreError(
                f"{here.folder} holds the key {here.manifest.key}, whose first 12 digits are also "
                f"those of {staged.manifest.key}. Remove one with `aotbuild prune`."
            )
        return here

    def _made(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _scratch(self) -> AbstractContextManager[Path]:
        """`staging`, with the system's own errors."""
        return scratch(self.root / "staging")
