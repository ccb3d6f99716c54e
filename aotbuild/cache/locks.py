"""Advisory locks that die with their owner. Says nothing of what they protect (`store` does)."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for whoever has it; the file is gone afterwards.

    The kernel drops a lock with its owner, however that dies, so nothing here goes by process ids,
    which mean nothing across containers.
    """
    fd = _acquire(path, wait=True)
    try:
        yield
    finally:
        if fd is not None:
            _release(path, fd)


@contextmanager
def try_hold(path: Path) -> Iterator[bool]:
    """As `hold`, but yields False at once where somebody has it."""
    fd = _acquire(path, wait=False)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            _release(path, fd)


def _acquire(path: Path, *, wait: bool) -> int | None:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            if not _flock(path, fd, wait=wait):
                os.close(fd)
                return None
            # Its last owner unlinked it while we waited: we hold a file that no one else will find.
            if _same_file(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _flock(path: Path, fd: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            return False
        log.info("waiting for the process that holds %s", path)
        fcntl.flock(fd, fcntl.LOCK_EX)
    return True


def _same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _release(path: Path, fd: int) -> None:
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(fd)
