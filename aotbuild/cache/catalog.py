"""The artifacts below a folder: listing them, finding one by key. Hashes and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from aotbuild.cache import disk
from aotbuild.cache.artifact import Broken, Entry, read_entry, read_or_broken
from aotbuild.cache.library import BROKEN
from aotbuild.errors import UsageError


def entries(root: Path, chosen: Iterable[Path] | None = None) -> Iterator[Entry | Broken]:
    """See `store.Store.entries`."""
    for folder in folders(root) if chosen is None else chosen:
        found = read_or_broken(folder)
        if isinstance(found, Broken) and not os.path.lexists(folder):
            continue  # pruned while we looked
        if isinstance(found, Entry) and folder != root / found.manifest.folder:
            found = Broken(folder, f"{folder} isn't where its manifest belongs. {BROKEN}.")
        yield found


def get(root: Path, key: str) -> Entry | None:
    """See `store.Store.get`."""
    for folder in folders(root):
        if _digits(folder) == key[:12]:
            found = read_or_broken(folder)
            if isinstance(found, Entry) and found.manifest.key == key:
                return found
    return None


def find(root: Path, prefix: str) -> Entry:
    """See `store.Store.find`."""
    wanted = prefix.strip().lower()
    named = [f for f in folders(root) if _digits(f).startswith(wanted[:12])]
    found = [read_or_broken(f) for f in named] if wanted else []
    fitting = [e for e in found if isinstance(e, Entry) and e.manifest.key.startswith(wanted)]
    if not fitting and len(found) == 1 and isinstance(found[0], Broken):
        return read_entry(found[0].folder)
    if not fitting:
        raise UsageError(
            f"No artifact in {root} has a key that begins with {prefix!r}. "
            "`aotbuild list` shows them all."
        )
    if len(fitting) > 1:
        keys = ", ".join(sorted(e.manifest.key[:12] for e in fitting))
        raise UsageError(f"{prefix!r} begins several keys: {keys}. Give more of it.")
    return fitting[0]


def folders(root: Path) -> Iterator[Path]:
    """Whatever lies where artifacts do, sorted; links come as they are and aren't followed."""
    found = [root / "artifacts"]
    with disk.translated(root):
        for level in range(3):
            found = [
                below
                for path in found
                for below in ([path] if level and path.is_symlink() else disk.children(path))
            ]
    yield from found


def _digits(folder: Path) -> str:
    return folder.name.rpartition("-")[2]
