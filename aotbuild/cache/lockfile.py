"""A lockfile: artifacts of one commit of a collection, with all that is needed to fetch and check.

It repeats the index's entries, so that whoever has it and the artifacts needs no network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotbuild.cache import disk
from aotbuild.cache.collection import read_items
from aotbuild.cache.item import Documents, Item, check_order
from aotbuild.cache.pinning import COMMIT
from aotbuild.canonical import check_format, check_texts, parse_json
from aotbuild.errors import SourceError

FORMAT = 1
_FIELDS = {"format", "repository", "revision", "artifacts", "documents"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """What a lockfile says.

    Attributes:
        repository: "organisation/name".
        revision: the commit, 40 hex digits.
        items: the artifacts, sorted by folder.
    """

    repository: str
    revision: str
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        check_texts("lockfile", self, "repository", "revision")
        if not COMMIT.fullmatch(self.revision):
            raise ValueError(f"revision {self.revision!r} isn't a commit of 40 digits")
        check_order(self.items)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field, and once each the documents that artifacts share."""
        documents: Documents = {}
        artifacts = [i.to_json(documents) for i in self.items]
        return {
            "format": FORMAT,
            "repository": self.repository,
            "revision": self.revision,
            "artifacts": artifacts,
            "documents": documents,
        }

    def write(self, path: Path) -> None:
        """Put it at `path`, whole or not at all; indented, to be read in a review.

        Raises:
            OSError: it can't be written.
        """
        text = json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        new = path.with_name(f".{path.name}.new")
        disk.remove(new)
        disk.write(new, text.encode())
        new.replace(path)


def read_lock(path: Path) -> Lock:
    """The lockfile at `path`.

    Raises:
        SourceError: it isn't one, or was altered.
    """
    try:
        document = parse_json(path.read_bytes(), unique=True)
        check_format(document.get("format"), FORMAT)
        if set(document) != _FIELDS:
            raise ValueError("an unknown field, or a missing one")
        return Lock(
            repository=document["repository"],
            revision=document["revision"],
            items=read_items(document),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError) as e:
        raise SourceError(
            f"{path} isn't a lockfile that can be used: {e}. `aotbuild lock REPO` writes one."
        ) from e
