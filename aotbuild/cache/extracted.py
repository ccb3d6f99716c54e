"""The extracted libraries of a store: `libraries/<sha256>.so`, hashed at every opening."""

from __future__ import annotations

import os
from pathlib import Path

from aotbuild.cache import disk, library
from aotbuild.cache.artifact import Entry
from aotbuild.cache.staging import scratch


def open_extracted(root: Path, entry: Entry) -> int:
    """See `store.Store.open_library`."""
    path = _path(root, entry)
    if _noexec(path.parent):
        return _in_memory(entry)
    if os.path.lexists(path):
        with library.open_package(entry.folder, entry.manifest):
            pass
    else:
        try:
            _extract(root, entry, path)
        except OSError as e:
            if e.errno not in disk.UNWRITABLE:
                raise disk.store_error(root, e) from e
            return _in_memory(entry)
    return library.open_checked(path, library.library_of(entry.manifest))


def check_extracted(root: Path, entry: Entry) -> None:
    """Refuse with an IntegrityError an extracted library that was altered; none at all is fine."""
    if entry.manifest.library is None:
        return
    path = _path(root, entry)
    if os.path.lexists(path):
        os.close(library.open_checked(path, entry.manifest.library))


def _path(root: Path, entry: Entry) -> Path:
    return root / "libraries" / f"{library.library_of(entry.manifest).sha256}.so"


def _noexec(folder: Path) -> bool:
    """Whether libraries that lie in `folder`, which need not exist, can't be mapped as code."""
    while not os.path.exists(folder) and folder != folder.parent:  # noqa: PTH110 (never raises)
        folder = folder.parent
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def _in_memory(entry: Entry) -> int:
    data = library.read_library(entry.folder, entry.manifest)
    return library.in_memory(data, library.library_of(entry.manifest))


def _extract(root: Path, entry: Entry, path: Path) -> None:
    data = library.read_library(entry.folder, entry.manifest)
    with scratch(root / "staging") as own:
        disk.write(own / path.name, data)
        (own / path.name).chmod(0o444)
        path.parent.mkdir(exist_ok=True)
        (own / path.name).replace(path)
        disk.sync(path.parent)
