"""A collection's index, `aotbuild.json`: a loader matches by it without reading any other file.

Speaks to no Hub (`hub` does), and decides nothing about fit (`match` does).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from aotbuild.cache.artifact import VERIFICATIONS, Entry
from aotbuild.cache.item import Documents, Item, check_order, describe
from aotbuild.cache.records import read_records, record_bytes
from aotbuild.cache.seals import statement
from aotbuild.cache.signature import Signature
from aotbuild.canonical import (
    check_format,
    checked_list,
    digest,
    is_sealed,
    parse_json,
    sealed,
)
from aotbuild.errors import IntegrityError, ManifestError

INDEX = "aotbuild.json"
CARD = "README.md"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Index:
    """The artifacts of a collection, sorted by folder, each key once."""

    items: tuple[Item, ...] = ()

    def __post_init__(self) -> None:
        check_order(self.items)

    def to_json(self) -> dict[str, Any]:
        """A JSON object: format, artifacts, and once each the documents that they share."""
        documents: Documents = {}
        artifacts = [i.to_json(documents) for i in self.items]
        return {"format": FORMAT, "artifacts": artifacts, "documents": documents}

    def to_bytes(self) -> bytes:
        """The canonical bytes of `aotbuild.json`: the document, its sha256 as the last entry."""
        return sealed(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = INDEX) -> Index:
        """Read `aotbuild.json`; any byte that differs from `to_bytes` is refused.

        Raises:
            ManifestError: saying what is wrong, and `where`.
        """
        try:
            document = parse_json(data)
            del document["sha256"]
            check_format(document.get("format"), FORMAT)
            if set(document) != {"format", "artifacts", "documents"}:
                raise ValueError(f"its fields are {sorted(document)}")
            if not is_sealed(data):
                raise ValueError("it was altered, since its sha256 isn't its text's")
            index = cls(read_items(document))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise ManifestError(f"{where} isn't a collection's index: {e}.") from e
        if index.to_bytes() != data:
            raise ManifestError(f"{where} was altered: it isn't in canonical form.")
        return index

    def merged(self, ours: Iterable[Item]) -> tuple[Index, tuple[Item, ...]]:
        """This index with `ours` added, and of each what is new: whole artifacts, or records.

        Of a key that is here already the published manifest stays; records and seals are added.

        Raises:
            IntegrityError: one key stands for two different packages.
        """
        found = {i.key: i for i in self.items}
        new = []
        for item in ours:
            theirs = found.get(item.key)
            if theirs is None:
                found[item.key] = item
                new.append(item)
            elif theirs.code != item.code:
                raise IntegrityError(
                    f"The key {item.key[:12]} is published with other bytes than the store's: "
                    "one of the builds isn't reproducible. `aotbuild verify KEY --rebuild` tells "
                    "which."
                )
            else:
                both = joined(theirs, item)
                if both != theirs:
                    found[item.key] = both
                    new.append(item)
        index = Index(tuple(sorted(found.values(), key=lambda i: i.folder)))
        return index, tuple(new)


def read_items(document: dict[str, Any]) -> tuple[Item, ...]:
    """The artifacts of an index or a lockfile, whose documents are checked first.

    Raises:
        ValueError: saying what is wrong.
    """
    documents = document["documents"]
    for name, value in documents.items():
        if digest(value) != name:
            raise ValueError(f"document {name[:12]} was altered")
    signatures: dict[str, Signature] = {}
    listed = checked_list("artifacts", document["artifacts"])
    return tuple(Item.from_json(d, documents, signatures) for d in listed)


def joined(item: Item, other: Item) -> Item:
    """`item` with the records that lie beside `other`, of the same key, and its seals.

    A seal is over one manifest, so that those of another manifest are left out.
    """
    known = {f.name for f in item.files}
    files = [f for f in other.files if f.name.startswith(VERIFICATIONS) and f.name not in known]
    names = {f.name for f in files}
    records = (*item.records, *(r for r in other.records if r.file in names))
    everything = sorted((*item.files, *files), key=lambda f: f.name)
    seals = item.seals
    if statement(item) == statement(other):
        owners = {s.public for s in seals}
        seals = (*seals, *(s for s in other.seals if s.public not in owners))
    return replace(item, files=tuple(everything), records=records, seals=seals)


def describe_entry(entry: Entry) -> Item:
    """The index's entry of an artifact in a store, with the records that lie beside it."""
    key = entry.manifest.key
    records = list(read_records(entry.folder / VERIFICATIONS, key))
    added = dict(record_bytes(r, key) for r in records)
    return describe(entry.manifest, added, records)
