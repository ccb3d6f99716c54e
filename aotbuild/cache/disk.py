"""Writing so that a crash leaves all or nothing, and the disk's errors as ours.

Knows no artifact (`artifact` does).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aotbuild.errors import StoreError

UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def translated(root: Path) -> Iterator[None]:
    """Any OSError of the body as a StoreError with what to do about it."""
    try:
        yield
    except OSError as e:
        raise store_error(root, e) from e


@contextmanager
def full_translated(root: Path) -> Iterator[None]:
    """As `translated`, for a full disk alone: other errors of the body are the body's own."""
    try:
        yield
    except OSError as e:
        if e.errno not in FULL:
            raise
        raise store_error(root, e) from e


def store_error(root: Path, error: OSError) -> StoreError:
    """What happened to the store at `root`, and what to type next."""
    what = f"{error.strerror or error} ({error.filename or root})"
    if error.errno in FULL:
        return StoreError(
            f"No space left for the store {root}: {what}. Nothing that it holds was lost; "
            "`aotbuild prune` makes room, and `--store DIR` or AOTBUILD_STORE names another place."
        )
    if error.errno in UNWRITABLE:
        return StoreError(
            f"The store {root} can't be written: {what}. It still serves for reading; to build, "
            "name another place with `--store DIR` or AOTBUILD_STORE."
        )
    return StoreError(f"The store {root} can't be used: {what}. `--store DIR` names another place.")


def write(path: Path, data: bytes) -> None:
    """A new file of these bytes, on the disk before this returns."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def sync(path: Path) -> None:
    """The file or folder at `path`, on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Every file and folder from `folder` down, children first."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(parent, name))
        sync(Path(parent))


def remove(path: Path) -> None:
    """The file, link or tree at `path`, gone; links aren't followed, and nothing there is fine."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        if os.path.lexists(path):
            remove(path)


def children(folder: Path) -> list[Path]:
    """What lies in `folder`, sorted; nothing where there is no such folder."""
    try:
        with os.scandir(folder) as found:
            return sorted(Path(e.path) for e in found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(path: Path) -> int:
    """Bytes of the file at `path`, or of all files below it; what vanishes counts nothing."""
    if not path.is_dir() or path.is_symlink():
        return _size(path)
    return sum(_size(Path(parent, n)) for parent, _, names in os.walk(path) for n in names)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
