"""What `load` was pointed at: a folder, a lockfile, or a collection on the Hub."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from aotbuild.cache.lockfile import read_lock
from aotbuild.loaders.remote import Remote, open_locked, open_remote
from aotbuild.loaders.source import local_source


def open_source(
    source: str | PathLike[str], revision: str | None, *, allow_unpinned: bool
) -> Path | Remote:
    """The folder, or the collection whose index was read.

    Raises:
        SourceError: it isn't there, isn't a lockfile, or its revision isn't a commit.
        HubError: the Hub can't be reached.
    """
    path = local_source(source, revision)
    if path is None:
        return open_remote(str(source), revision, allow_unpinned=allow_unpinned)
    return path if path.is_dir() else open_locked(read_lock(path))
