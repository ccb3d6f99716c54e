"""Verification records as files: what an artifact passed, added after it was built.

What passes is `build.verify`'s to say.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aotbuild.cache.library import open_file
from aotbuild.cache.verification import check_record
from aotbuild.canonical import canonical_bytes, parse_json
from aotbuild.errors import ArtifactError, StoreError

log = logging.getLogger(__name__)

_LARGEST_RECORD_BYTES = 1 << 20


def record_bytes(record: Mapping[str, Any], key: str) -> tuple[str, bytes]:
    """(file name, bytes) of a record: canonical JSON, named by its digest.

    Raises:
        StoreError: it lacks what `match` reads of it, or is another key's.
    """
    try:
        check_record(record, key)
        data = canonical_bytes(dict(record)) + b"\n"
    except (ValueError, TypeError) as e:
        raise StoreError(f"Not a verification record: {e}.") from e
    return _name(data), data


def read_records(folder: Path, key: str) -> Iterator[dict[str, Any]]:
    """The records of `key` in `folder`, by name; an altered one is left out with a WARNING."""
    try:
        names = sorted(e.name for e in os.scandir(folder) if e.name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        try:
            yield _read(folder, name, key)
        except (ArtifactError, ValueError, TypeError, RecursionError, OSError) as e:
            log.warning("ignored the verification record %s: %s", folder / name, e)


def _read(folder: Path, name: str, key: str) -> dict[str, Any]:
    with os.fdopen(open_file(folder, name), "rb") as file:
        data = file.read(_LARGEST_RECORD_BYTES)
    if _name(data) != name:
        raise ValueError("its name isn't the digest of its bytes")
    record: dict[str, Any] = parse_json(data)
    check_record(record, key)
    return record


def _name(data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()[:16]}.json"
