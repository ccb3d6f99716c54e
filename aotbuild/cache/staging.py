"""Folders to prepare things in, that go with their owner. What is prepared is `store`'s concern."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aotbuild.cache import disk, locks

log = logging.getLogger(__name__)

_OURS = re.compile(r"\d+-[0-9a-f]{8}")
"""How `scratch` names its folders: process and eight random digits."""


@contextmanager
def scratch(staging: Path) -> Iterator[Path]:
    """A fresh folder below `staging`, locked while the body runs, gone afterwards.

    Raises:
        OSError: it can't be made.
    """
    staging.mkdir(parents=True, exist_ok=True)
    sweep(staging)
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    with locks.hold(staging / f"{name}.lock"):
        folder = staging / name
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(staging: Path) -> None:
    """Remove the folders whose owners are dead: those whose locks can be had."""
    for path in disk.children(staging):
        name = path.name.removesuffix(".lock")
        if not _OURS.fullmatch(name):
            continue  # a folder that happens to be called so holds other people's files
        try:
            with locks.try_hold(staging / f"{name}.lock") as mine:
                if mine:
                    disk.remove(staging / name)
        except OSError as e:
            # Another user's, or a read-only store: in nobody's way, and not ours to fail for.
            log.info("left %s where it is: %s", path, e)
