"""The files of an artifact as its manifest records them. Opens none of them (`library` does)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from aotbuild.canonical import check_texts, checked_fields, checked_list

PACKED = "constants.safetensors"
"""The name of the file that holds packed constants, where an artifact has them."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A file of the artifact, or the library inside the package: name, hex sha256, size."""

    name: str
    sha256: str
    bytes: int

    def __post_init__(self) -> None:
        check_texts("file", self, "name")
        if not isinstance(self.sha256, str) or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.name}: sha256 {self.sha256!r} isn't 64 hex digits")
        if type(self.bytes) is not int or self.bytes < 0:
            raise ValueError(f"{self.name}: {self.bytes!r} isn't a size in bytes")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {"name": self.name, "sha256": self.sha256, "bytes": self.bytes}

    @classmethod
    def from_json(cls, document: object, where: str) -> FileRecord:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        return cls(**checked_fields(cls, document, where))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the swapped method, for a stand-in that has no module to ask.

    Attributes:
        name: the parameter's.
        required: whether a call must give it.
        default: what it is where a call doesn't: a number, a string, true, false or null.
        read: whether the method's code reads it; a random generator for one that isn't read
            counts as absent.
    """

    name: str
    required: bool
    default: bool | int | float | str | None
    read: bool

    def __post_init__(self) -> None:
        plain = isinstance(self.default, bool | int | float | str | None)
        if not isinstance(self.name, str) or not self.name.isidentifier() or not plain:
            raise ValueError(f"packed: {self.name!r} isn't a parameter with a plain default")
        if not isinstance(self.required, bool) or not isinstance(self.read, bool):
            raise ValueError(f"packed: parameter {self.name}: required and read are true or false")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "name": self.name,
            "required": self.required,
            "default": self.default,
            "read": self.read,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The constants that lie beside the code, and the weights that they were made of.

    Attributes:
        file: `constants.safetensors`.
        parameters: of the swapped method, in its order.
        checkpoint: the Hub id that the weights came from; None: a folder.
        revision: the commit of it.
        digest: hex sha256 over the sorted (name, sha256) pairs of the component's weight files.
    """

    file: FileRecord
    parameters: tuple[Parameter, ...]
    checkpoint: str | None
    revision: str | None
    digest: str

    def __post_init__(self) -> None:
        if self.file.name != PACKED:
            raise ValueError(f"packed: its file is {self.file.name!r}, not {PACKED!r}")
        if not isinstance(self.digest, str) or not _SHA256.fullmatch(self.digest):
            raise ValueError(f"packed: digest {self.digest!r} isn't 64 hex digits")
        for name in ("checkpoint", "revision"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"packed: {name} is neither text nor null")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "file": self.file.to_json(),
            "parameters": [p.to_json() for p in self.parameters],
            "checkpoint": self.checkpoint,
            "revision": self.revision,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, document: object) -> Packed:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        d = checked_fields(cls, document, "packed")
        listed = checked_list("packed: parameters", d["parameters"])
        parameters = (checked_fields(Parameter, p, "parameter") for p in listed)
        return cls(
            **{
                **d,
                "file": FileRecord.from_json(d["file"], "packed.file"),
                "parameters": tuple(Parameter(**p) for p in parameters),
            }
        )


def weights_part(digest: str | None) -> dict[str, str] | None:
    """The key part "weights" of an artifact: what its packed constants were made of, or None."""
    return None if digest is None else {"digest": digest}
