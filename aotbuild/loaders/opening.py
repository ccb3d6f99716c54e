"""What `load` was pointed at: a folder, a lockfile, or a collection on the Hub.

A folder needs nothing of what speaks to the Hub, so that is imported for the others alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from aotbuild import probe
from aotbuild.errors import SourceError
from aotbuild.loaders.source import local_source

if TYPE_CHECKING:
    from aotbuild.loaders.remote import Remote


def open_source(
    source: str | PathLike[str],
    revision: str | None,
    *,
    allow_unpinned: bool,
    keys: Sequence[str | PathLike[str]] | None,
    owners: Sequence[str] | None,
) -> Path | Remote:
    """The folder, or the collection whose index was read.

    Args:
        keys: who must have signed what is taken; None: anybody, or nobody.
        owners: whose collections are allowed; None: those that the environment allows.

    Raises:
        SourceError: it isn't there, isn't a lockfile, isn't pinned to a commit, isn't allowed, or
            is a folder where keys are named.
        HubError: the Hub can't be reached.
    """
    path = local_source(source, revision)
    if path is not None and path.is_dir():
        if keys is not None:
            raise SourceError(
                f"trusted_keys is for collections and lockfiles; {path} is a folder, whose "
                "artifacts have no signatures."
            )
        return path
    from aotbuild.cache.lockfile import read_lock
    from aotbuild.cache.pinning import check_owner
    from aotbuild.cache.seals import trusted_keys
    from aotbuild.loaders.remote import open_locked, open_remote

    lock = None if path is None else read_lock(path)
    name = str(source) if lock is None else lock.repository
    check_owner(name, probe.allowed_owners() if owners is None else owners)
    trusted = None if keys is None else trusted_keys(keys)
    if lock is not None:
        return open_locked(lock, trusted)
    return open_remote(name, revision, allow_unpinned=allow_unpinned, trusted=trusted)
