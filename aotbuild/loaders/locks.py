"""Locks that a forked child finds open: whoever held one in the parent isn't there to open it.

Private name of Python in use here, which `logging` and `threading` use for the same, tried on 3.11:
`lock._at_fork_reinit`, see Lib/logging/__init__.py.
"""

from __future__ import annotations

import os
import threading
import weakref

# Fork handlers can't be taken back, hence one for the process, and this one table.
_made: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def forking_lock() -> threading.Lock:
    """A lock, open in a child that is forked while somebody holds it."""
    lock = threading.Lock()
    _made.add(lock)
    return lock


def _reopen() -> None:
    for lock in list(_made):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_reopen)
