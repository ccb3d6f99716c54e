"""Artifacts from the store into another folder that `aotbuild.load` takes, for `build --out`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aotbuild.cache.store import Store
from aotbuild.errors import StoreError


def copy_artifacts(store: Path, keys: Iterable[str], out: Path) -> None:
    """Copy the artifacts of `keys`; those that are in `out` already stay as they are.

    Raises:
        StoreError: `out` can't be written, or an artifact is gone from the store by now.
    """
    source, target = Store(store), Store(out)
    for key in keys:
        entry = source.get(key)
        if entry is None:
            raise StoreError(f"{key[:12]} is gone from {source.root}; build it again.")
        target.add(entry.folder)
