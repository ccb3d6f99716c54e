"""The store: a local folder of artifacts, written by many, never seen half written. Decides nothing about fit (`match` does).

<root>/
    artifacts/<component>/<arch>/<signature slug>-<key, 12 hex>/    see docs/format.md
    libraries/<sha256>.so       extracted once, hashed at every opening
    staging/<pid>-<random>/     a builder's; swept once nobody holds its lock
    locks/<key>.lock            held by whoever builds that key
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aotbuild.cache import disk, library, locks
from aotbuild.cache.artifact import (
    VERIFICATIONS,
    Broken,
    Entry,
    read_entry,
    read_or_broken,
    verify_artifact,
)
from aotbuild.cache.prune import Item, Pruned, choose
from aotbuild.cache.records import read_records, record_bytes
from aotbuild.errors import ArtifactError, IntegrityError, StoreError


class Store:
    """Artifacts below `root`, which need not exist yet, and need not be writable to be read.

    Source of the rules: docs/format.md.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root).expanduser().absolute()

    # Reading

    def entries(self) -> Iterator[Entry | Broken]:
        """Every artifact, sorted by folder; what can't be used comes as `Broken` with its reason.

        Raises:
            StoreError: the store is there and can't be read.
        """
        for folder in self._folders():
            found = read_or_broken(folder)
            if isinstance(found, Broken) and not os.path.lexists(folder):
                continue  # pruned while we looked
            if isinstance(found, Entry) and folder != self.root / found.manifest.folder:
                found = Broken(
                    folder, f"{folder} isn't where its manifest belongs. {library.BROKEN}."
                )
            yield found

    def get(self, key: str) -> Entry | None:
        """The artifact of that whole key, if it is here and readable; its package isn't hashed yet."""
        for folder in self._folders(f"-{key[:12]}"):
            found = read_or_broken(folder)
            if isinstance(found, Entry) and found.manifest.key == key:
                return found
        return None

    def find(self, prefix: str) -> Entry:
        """The one artifact whose key begins with `prefix`.

        Raises:
            StoreError: none does, or several do.
            ArtifactError: it is there, and can't be used.
        """
        wanted = prefix.strip().lower()
        folders = [f for f in self._folders() if _key_part(f).startswith(wanted[:12])]
        found = list(map(read_or_broken, folders))
        entries = [e for e in found if isinstance(e, Entry) and e.manifest.key.startswith(wanted)]
        if len(entries) == 1 and wanted:
            return entries[0]
        if not entries and len(found) == 1 and isinstance(found[0], Broken):
            return read_entry(found[0].folder)
        if not entries or not wanted:
            raise StoreError(
                f"No artifact in {self.root} has a key that begins with {prefix!r}. `aotbuild list` shows them all."
            )
        keys = ", ".join(sorted(e.manifest.key[:12] for e in entries))
        raise StoreError(f"{prefix!r} begins several keys in {self.root}: {keys}. Give more of it.")

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
        path = self._library(entry)
        if os.path.lexists(path):
            os.close(library.open_checked(path, entry.manifest.library))

    def read_member(self, entry: Entry, name: str) -> bytes:
        """One file out of the verified package.

        Raises:
            IntegrityError: the package isn't what the manifest says, or has no such member.
        """
        where = entry.folder / entry.manifest.package.name
        with library.open_package(entry.folder, entry.manifest) as archive:
            limit = max(entry.manifest.package.bytes, entry.manifest.library.bytes)
            return library.read_member(archive, name, limit, where)

    def open_library(self, entry: Entry) -> int:
        """A descriptor of the artifact's `.so`, hashed through that very descriptor.

        The package is hashed every time; the library is extracted into this store the first time, or
        held in memory where the store can't be written or is mounted noexec. The caller closes it.

        Raises:
            IntegrityError: the package, a member of it, or the extracted library was altered.
            StoreError: no space left to extract it.
        """
        path = self._library(entry)
        if self._noexec():
            return self._in_memory(entry)
        if os.path.lexists(path):
            with library.open_package(entry.folder, entry.manifest):
                pass
        else:
            try:
                self._extract(entry, path)
            except OSError as e:
                if e.errno not in disk.UNWRITABLE:
                    raise disk.store_error(self.root, e) from e
                return self._in_memory(entry)
        return library.open_checked(path, entry.manifest.library)

    def verifications(self, entry: Entry) -> tuple[dict[str, Any], ...]:
        """The records of the manifest, then those that were added, sorted by file name."""
        return (*entry.manifest.verification, *read_records(entry.folder / VERIFICATIONS))

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
            StoreError: the store can't be written, or the record has no `passed` and `target`.
        """
        name, data = record_bytes(record)
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
        now_s: float = 0.0,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove what any of the arguments names; whatever can't be removed is reported, the rest goes.

        Args:
            broken: whatever doesn't verify, and what dead builders left.
            key: artifacts whose keys begin with this.
            older_than_s: artifacts that were built longer ago.
            max_bytes: the oldest, until the store is no larger.
            now_s: seconds since the epoch, that `older_than_s` counts back from.
            dry_run: only say what would go.
        """
        with disk.translated(self.root):
            if broken and not dry_run:
                self._sweep()
            chosen = choose(
                self.entries(),
                self.root / "libraries",
                broken=broken,
                key=key,
                older_than_s=older_than_s,
                max_bytes=max_bytes,
                now_s=now_s,
            )
            return Pruned(chosen) if dry_run or not chosen else self._remove(chosen)

    # Inside

    def _folders(self, ending: str = "") -> Iterator[Path]:
        """Whatever lies where artifacts do, sorted; links are reported, never followed."""
        level = [self.root / "artifacts"]
        with disk.translated(self.root):
            for _ in range(3):
                level = [child for folder in level for child in _children(folder)]
        yield from (f for f in level if f.name.endswith(ending))

    def _library(self, entry: Entry) -> Path:
        return self.root / "libraries" / f"{entry.manifest.library.sha256}.so"

    def _noexec(self) -> bool:
        """Whether libraries that lie in this store couldn't be mapped as code."""
        folder = self.root / "libraries"
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)

    def _in_memory(self, entry: Entry) -> int:
        data = library.read_library(entry.folder, entry.manifest)
        return library.in_memory(data, entry.manifest.library)

    def _extract(self, entry: Entry, path: Path) -> None:
        data = library.read_library(entry.folder, entry.manifest)
        with self._scratch() as own:
            disk.write(own / path.name, data)
            (own / path.name).chmod(0o444)
            (own / path.name).replace(self._made("libraries") / path.name)
            disk.sync(path.parent)

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

    def _remove(self, chosen: tuple[Item, ...]) -> Pruned:
        removed, failed = [], []
        with self._scratch() as trash, locks.hold(self._made("locks") / "add.lock"):
            for number, item in enumerate(chosen):
                try:
                    # Renamed first: nobody ever lists a half removed artifact.
                    item.path.rename(trash / str(number))
                    removed.append(item)
                except FileNotFoundError:
                    removed.append(item)
                except OSError as e:
                    failed.append((item, e.strerror or str(e)))
            disk.remove_empty(self.root / "artifacts")
        return Pruned(tuple(removed), tuple(failed))

    def _made(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """`staging`, with the system's own errors."""
        staging = self._made("staging")
        self._sweep()
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        with locks.hold(staging / f"{name}.lock"):
            folder = staging / name
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove the staging folders whose owners are dead: whose locks can be had."""
        for path in _children(self.root / "staging"):
            name = path.name.removesuffix(".lock")
            with locks.try_hold(self.root / "staging" / f"{name}.lock") as mine:
                if mine:
                    disk.remove(self.root / "staging" / name)


def _children(folder: Path) -> list[Path]:
    """What lies in `folder`, sorted; nothing where there is no such folder."""
    try:
        with os.scandir(folder) as found:
            return sorted(Path(e.path) for e in found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _key_part(folder: Path) -> str:
    return folder.name.rpartition("-")[2]
