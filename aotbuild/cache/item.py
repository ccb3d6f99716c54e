"""One artifact as a collection's index tells of it: all that decides whether it serves.

Reads no file, and says nothing of the index itself (`collection` does).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotbuild.cache.backend import AOT, BACKENDS, PACKAGES
from aotbuild.cache.covers import Covered, RecordSummary, Seal, summary
from aotbuild.cache.files import PACKED, FileRecord, Packed
from aotbuild.cache.key import Part
from aotbuild.cache.manifest import Manifest, ModuleIdentity
from aotbuild.cache.signature import DEVICES, DTYPE, Signature
from aotbuild.canonical import check_texts, checked_fields, checked_list, digest, matches
from aotbuild.target import Target

MANIFEST = "manifest.json"
_OWN = ("key", "backend", "component", "method", "scope", "precision")
_RECORD = r"verifications/[0-9a-f]{16}\.json"

Documents = dict[str, Any]
"""What many artifacts share (configs, states, signatures), by the digest of its canonical JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One artifact of a collection; fields that a manifest has too are the manifest's.

    Attributes:
        versions: of the packages that the module's source came from, to word a refusal.
        covers: what it was built for.
        records: of its verification, with those that were added later.
        files: of its folder, by path below it: name, sha256, size. The manifest is one of them.
        seals: who signed it, see `seals`.
    """

    key: str
    backend: str
    component: str
    method: str
    scope: str
    precision: str
    module: ModuleIdentity
    signature: Signature
    state: dict[str, Any]
    target: Target
    versions: dict[str, Any]
    packed: Packed | None
    covers: Covered
    records: tuple[RecordSummary, ...]
    files: tuple[FileRecord, ...]
    seals: tuple[Seal, ...] = ()

    def __post_init__(self) -> None:
        check_texts("artifact", self, "key", "backend", "component", "method", "scope", "precision")
        if not matches(r"[0-9a-f]{64}", self.key):
            raise ValueError(f"key {self.key!r} isn't 64 hex digits")
        if self.scope not in ("full", "regional"):
            raise ValueError(f"scope {self.scope!r} is neither full nor regional")
        if self.backend not in BACKENDS or (self.packed is not None and self.backend != AOT):
            raise ValueError(
                f"backend {self.backend!r} is none of {', '.join(BACKENDS)}, or packed"
            )
        names = (self.component, self.target.slug, self.signature.slug)
        if not all(matches(r"\w[\w.-]*", n) for n in names):
            raise ValueError(f"{self.folder!r} isn't made of plain names")
        if not self.method.isidentifier() or not matches(DTYPE, self.precision):
            raise ValueError(f"{self.method!r} or {self.precision!r} isn't a plain name")
        if self.target.device not in DEVICES:
            raise ValueError(f"target: device {self.target.device!r} is none of {DEVICES}")
        if not isinstance(self.state, dict) or not isinstance(self.versions, dict):
            raise ValueError("state and versions are objects")
        self._check_files()

    def _check_files(self) -> None:
        names = [f.name for f in self.files]
        needed = [MANIFEST, PACKAGES[self.backend], *([PACKED] if self.packed else [])]
        others = [n for n in names if n not in needed]
        if names != sorted(set(names)) or not set(needed) <= set(names):
            raise ValueError(f"{self.folder}: files lack one of {', '.join(needed)}, or order")
        if not all(matches(_RECORD, n) for n in others):
            raise ValueError(f"{self.folder}: {others} are no files of an artifact")
        if self.packed is not None and self.packed.file not in self.files:
            raise ValueError(f"{self.folder}: {PACKED} isn't the one of `packed`")
        if not {r.file for r in self.records} - {None} <= set(others):
            raise ValueError(f"{self.folder}: a record's file isn't among the files")

    @property
    def folder(self) -> str:
        """Where the artifact lies, below the collection's root."""
        place = f"{self.signature.slug}-{self.key[:12]}"
        return "/".join(("artifacts", self.component, self.target.slug, place))

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(f.bytes for f in self.files)

    @property
    def code(self) -> tuple[FileRecord, ...]:
        """The files that its key stands for: package, packed constants."""
        return tuple(f for f in self.files if f.name in (PACKAGES[self.backend], PACKED))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The one part of the key that `match` reads."""
        return (Part.of("versions", self.versions),)

    @property
    def verification(self) -> tuple[dict[str, Any], ...]:
        """The records as `match` reads them."""
        return tuple({"passed": r.passed, "target": r.target.to_json()} for r in self.records)

    def to_json(self, documents: Documents) -> dict[str, Any]:
        """A JSON object with every field; what is bulky goes into `documents`."""
        own = {n: getattr(self, n) for n in _OWN}
        return {
            **own,
            "module": {
                "class_name": self.module.class_name,
                "config": _put(documents, self.module.config),
                "source_sha256": self.module.source_sha256,
            },
            "signature": _put(documents, self.signature.to_json()),
            "state": _put(documents, self.state),
            "target": self.target.to_json(),
            "versions": self.versions,
            "packed": None if self.packed is None else self.packed.to_json(),
            "covers": self.covers.to_json(),
            "records": [r.to_json() for r in self.records],
            "files": [f.to_json() for f in self.files],
            "seals": [s.to_json() for s in self.seals],
        }

    @classmethod
    def from_json(
        cls, document: object, documents: Documents, signatures: dict[str, Signature]
    ) -> Item:
        """The inverse of `to_json`; `signatures` keeps those that were read already.

        Raises:
            ValueError: saying what is wrong.
        """
        d = checked_fields(cls, document, "artifact")
        module = dict(d["module"])
        module["config_sha256"] = module.get("config")
        module["config"] = _get(documents, module.get("config"))
        text = str(d["signature"])
        if text not in signatures:
            signatures[text] = Signature.from_json(_get(documents, text))
        return cls(
            **{
                **d,
                "module": ModuleIdentity(**checked_fields(ModuleIdentity, module, "module")),
                "signature": signatures[text],
                "state": _get(documents, d["state"]),
                "target": Target.from_json(d["target"]),
                "packed": None if d["packed"] is None else Packed.from_json(d["packed"]),
                "covers": Covered(**checked_fields(Covered, d["covers"], "covers")),
                "records": tuple(
                    RecordSummary.from_json(r) for r in checked_list("records", d["records"])
                ),
                "files": tuple(
                    FileRecord.from_json(f, "file") for f in checked_list("files", d["files"])
                ),
                "seals": tuple(Seal.from_json(s) for s in checked_list("seals", d["seals"])),
            }
        )


def describe(manifest: Manifest, added: Mapping[str, bytes], records: Iterable[Any]) -> Item:
    """The entry of an artifact.

    Args:
        manifest: its.
        added: file name -> bytes of each verification record that lies beside it.
        records: the same ones, read, in the same order.
    """
    files = {f.name: f for f in manifest.files}
    contents = {MANIFEST: manifest.to_bytes()}
    contents |= {f"verifications/{name}": data for name, data in added.items()}
    for name, data in contents.items():
        sha256 = hashlib.sha256(data).hexdigest()
        files[name] = FileRecord(name=name, sha256=sha256, bytes=len(data))
    summaries = [summary(None, r) for r in manifest.verification]
    pairs = zip(added, records, strict=True)
    summaries += [summary(f"verifications/{name}", r) for name, r in pairs]
    versions = next(p.value for p in manifest.parts if p.name == "versions")
    names = (*_OWN, "module", "signature", "state")
    return Item(
        **{n: getattr(manifest, n) for n in names},
        target=manifest.target,
        versions=versions if isinstance(versions, dict) else {},
        packed=manifest.packed,
        covers=Covered.of(manifest),
        records=tuple(summaries),
        files=tuple(files[name] for name in sorted(files)),
    )


def _put(documents: Documents, value: Any) -> str:
    name = digest(value)
    documents[name] = value
    return name


def _get(documents: Documents, name: object) -> Any:
    if not isinstance(name, str) or name not in documents:
        raise ValueError(f"no document {name!r} among the index's")
    return documents[name]


def check_order(items: Sequence[Item]) -> None:
    """Refuse with a ValueError artifacts that aren't sorted by folder, each there once."""
    places = [i.folder for i in items]
    if places != sorted(set(places)):
        raise ValueError("the artifacts aren't sorted by folder, or one is there twice")
