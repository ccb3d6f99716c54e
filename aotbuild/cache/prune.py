"""What to remove from a store, and its removal. Holding the store's lock is the caller's part."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from aotbuild.cache import disk
from aotbuild.cache.artifact import Broken, Entry, verify_artifact
from aotbuild.cache.library import digest_of, open_file
from aotbuild.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Something in a store that can go, or went.

    Attributes:
        path: an artifact's folder, or an extracted library.
        key: of an artifact, where its manifest reads.
        bytes: what it takes on the disk.
        made_s: when it was written, seconds since the epoch.
        library: hex sha256 of the library that an artifact uses, or that an extracted one is.
        reason: why it goes, in words; empty while nothing speaks against it.
    """

    path: Path
    key: str | None
    bytes: int
    made_s: float
    library: str | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, and (what, why) of that which couldn't be."""

    removed: tuple[Removal, ...]
    failed: tuple[tuple[Removal, str], ...] = ()


def choose(
    entries: Iterable[Entry | Broken],
    extracted: Path,
    *,
    broken: bool,
    key: str | None,
    older_than_s: float | None,
    max_bytes: int | None,
    now_s: float,
    keep: Collection[str] = (),
) -> tuple[Removal, ...]:
    """What any of the arguments names, see `store.Store.prune`; `extracted` holds the libraries.

    Artifacts of the keys in `keep` stay, and their libraries.
    """
    artifacts, libraries = list(artifact_items(entries)), list(library_items(extracted))
    stays = {i.path for i in artifacts if i.key in keep}
    going: dict[Path, Removal] = {}
    if broken:
        going |= {i.path: i for i in broken_items(artifacts, libraries)}
    if key and (key := key.strip().lower()):
        named = named_items(artifacts, key)
        going |= {i.path: replace(i, reason=f"its key begins with {key}") for i in named}
    if older_than_s is not None:
        aging = [i for i in artifacts if i.path not in stays]
        going |= {i.path: i for i in older_items(aging, older_than_s, now_s)}
    if max_bytes is not None:
        left = [[i for i in items if i.path not in going] for items in (artifacts, libraries)]
        going |= {i.path: i for i in excess_items(left[0], left[1], max_bytes, stays)}
    chosen = list(going.values())
    return (*chosen, *orphans(chosen, artifacts, libraries))


def remove(chosen: Iterable[Removal], trash: Path, artifacts: Path) -> Pruned:
    """Move each into `trash`, which the caller empties, and tidy the folders of `artifacts`.

    Moving is one step, so nobody ever lists a half removed artifact. Of the folders above, those go
    that are empty by that: <component>/<arch> and <component>.
    """
    removed: list[Removal] = []
    failed: list[tuple[Removal, str]] = []
    for number, item in enumerate(chosen):
        try:
            with suppress(FileNotFoundError):
                item.path.rename(trash / str(number))
            removed.append(item)
        except OSError as e:
            failed.append((item, e.strerror or str(e)))
    for item in removed:
        _remove_empty(item.path.parent, artifacts)
    return Pruned(tuple(removed), tuple(failed))


def _remove_empty(folder: Path, below: Path) -> None:
    """`folder` and those above it, as long as they are empty and lie below `below`."""
    with suppress(OSError):
        while below in folder.parents:
            folder.rmdir()
            folder = folder.parent


def artifact_items(entries: Iterable[Entry | Broken]) -> Iterator[Removal]:
    """Every artifact; one that can't be read has its reason to go already."""
    for entry in entries:
        folder, size = entry.folder, disk.size_of(entry.folder)
        if isinstance(entry, Entry):
            made_s, record = _made_s(folder / "manifest.json"), entry.manifest.library
            key, library = entry.manifest.key, None if record is None else record.sha256
            yield Removal(path=folder, key=key, bytes=size, made_s=made_s, library=library)
        else:
            reason, made_s = entry.reason, _made_s(folder)
            yield Removal(
                path=folder, key=None, bytes=size, made_s=made_s, library=None, reason=reason
            )


def library_items(folder: Path) -> Iterator[Removal]:
    """Everything that lies among the extracted libraries."""
    for path in disk.children(folder):
        name = path.name.removesuffix(".so")
        size, made_s = disk.size_of(path), _made_s(path)
        yield Removal(path=path, key=None, bytes=size, made_s=made_s, library=name)


def named_items(artifacts: Iterable[Removal], key: str) -> Iterator[Removal]:
    """Those whose keys begin with `key`; of broken ones the folder's name has the first digits."""
    for item in artifacts:
        digits = re.search(r"-([0-9a-f]{12})$", item.path.name)
        known = item.key or (digits[1] if digits else "")
        if known and known.startswith(key if item.key else key[:12]):
            yield item


def broken_items(artifacts: Iterable[Removal], libraries: Iterable[Removal]) -> Iterator[Removal]:
    """Those that can't be used, every byte of the others hashed to know."""
    for item in artifacts:
        try:
            if not item.reason:
                verify_artifact(item.path)
        except (ArtifactError, OSError) as e:
            item = replace(item, reason=str(e))
        if item.reason:
            yield item
    for item in libraries:
        reason = _library_fault(item.path)
        if reason is not None:
            yield replace(item, reason=reason)


def older_items(items: Iterable[Removal], than_s: float, now_s: float) -> Iterator[Removal]:
    """Those that were written more than `than_s` seconds before `now_s`."""
    for item in items:
        age_s = now_s - item.made_s
        if age_s > than_s:
            yield replace(item, reason=f"{age_s / 86400:.1f} days old")


def excess_items(
    artifacts: list[Removal],
    libraries: list[Removal],
    max_bytes: int,
    stays: Collection[Path] = (),
) -> Iterator[Removal]:
    """The fewest old ones whose going leaves `max_bytes`; libraries that no artifact uses go first.

    An artifact's going takes its extracted library along, unless another uses the same.
    """
    used = [a.library for a in artifacts]
    sizes = {item.library: item.bytes for item in libraries}
    total = sum(item.bytes for item in (*artifacts, *libraries))
    idle = [item for item in libraries if item.library not in used]
    for item in (*sorted(idle, key=_age), *sorted(artifacts, key=_age)):
        if total <= max_bytes:
            return
        if item.path in stays:
            continue
        total -= item.bytes
        if item in artifacts:
            used.remove(item.library)
            total -= 0 if item.library in used else sizes.pop(item.library, 0)
        yield replace(item, reason=f"the store is larger than {max_bytes} bytes")


def orphans(
    going: list[Removal], artifacts: list[Removal], libraries: list[Removal]
) -> Iterator[Removal]:
    """Extracted libraries of the artifacts that go, of which no artifact that stays has need."""
    paths = {item.path for item in going}
    kept = {item.library for item in artifacts if item.path not in paths}
    lost = {item.library for item in artifacts if item.path in paths} - kept
    for item in libraries:
        if item.library in lost and item.path not in paths:
            yield replace(item, reason="its artifact goes")


def _library_fault(path: Path) -> str | None:
    if not re.fullmatch(r"[0-9a-f]{64}\.so", path.name):
        return "not an extracted library"
    try:
        fd = open_file(path.parent, path.name)
    except ArtifactError as e:
        return str(e)
    try:
        return (
            None if digest_of(fd)[0] == path.stem else "its bytes aren't those that it is named by"
        )
    finally:
        os.close(fd)


def _made_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _age(item: Removal) -> tuple[float, str]:
    return item.made_s, str(item.path)
