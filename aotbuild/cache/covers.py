"""What an artifact was built for, where it passed, who signed it, as an index says it.

The whole of it is in the manifest and the records (`manifest`, `records`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from aotbuild.cache.manifest import Manifest
from aotbuild.canonical import checked_fields, matches
from aotbuild.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What an artifact was built for, in the words of `aotbuild build`; None where unrecorded.

    Attributes:
        recipe: its name.
        dtype: "bf16".
        quantization: of this component, "none" or "int8dq".
        resolution: "1024x1024", or a range "768x768:1280x1280".
        batch: images per call.
        variant: the recipe's name for the call.
        checkpoint: Hub id of the base weights.
    """

    recipe: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    resolution: str | None = None
    batch: int | None = None
    variant: str | None = None
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            kind = int if f.name == "batch" else str
            value = getattr(self, f.name)
            if value is not None and type(value) is not kind:
                raise ValueError(f"covers: {f.name} is {value!r}, not {kind.__name__} or null")
            if isinstance(value, str) and not value.isprintable():
                raise ValueError(f"covers: {f.name} is {value!r}, not text that can be shown")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"covers: batch is {self.batch}, not 1 or more")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def of(cls, manifest: Manifest) -> Covered:
        """What the resolved recipe and the provenance of a manifest say."""
        recipe, call = manifest.recipe, _table(manifest.recipe.get("call"))
        rehearsal = _table(manifest.provenance.get("rehearsal"))
        component = _table(_table(recipe.get("components")).get(manifest.component.split(".")[0]))
        dynamic = rehearsal.get("dynamic")
        found: dict[str, Any] = {
            "recipe": recipe.get("name"),
            "dtype": recipe.get("dtype"),
            "quantization": component.get("quantization"),
            "resolution": ":".join(map(str, dynamic)) if dynamic else call.get("resolution"),
            "batch": call.get("batch"),
            "variant": rehearsal.get("variant"),
            "checkpoint": manifest.provenance.get("checkpoint"),
        }
        plain = {n: v if isinstance(v, str | int) else None for n, v in found.items()}
        return cls(**dict[str, Any](plain))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSummary:
    """Of a verification record: whether it passed and where; `file` None: it is the manifest's."""

    file: str | None
    passed: bool
    target: Target

    def __post_init__(self) -> None:
        if type(self.passed) is not bool or not isinstance(self.file, str | None):
            raise ValueError("records: `passed` is true or false, `file` a name or null")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {"file": self.file, "passed": self.passed, "target": self.target.to_json()}

    @classmethod
    def from_json(cls, document: object) -> RecordSummary:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        d = checked_fields(cls, document, "record")
        return cls(**{**d, "target": Target.from_json(d["target"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """An Ed25519 signature over an index's entry: `public` key and `value`, in hex digits."""

    public: str
    value: str

    def __post_init__(self) -> None:
        for name, length in (("public", 64), ("value", 128)):
            text = getattr(self, name)
            if not isinstance(text, str) or not matches(rf"[0-9a-f]{{{length}}}", text):
                raise ValueError(f"seals: {name} isn't {length} hex digits")

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {"public": self.public, "value": self.value}

    @classmethod
    def from_json(cls, document: object) -> Seal:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        return cls(**checked_fields(cls, document, "seal"))


def summary(file: str | None, record: Mapping[str, Any]) -> RecordSummary:
    """Of a record that was checked, with the name of its file."""
    target = Target.from_json(record["target"])
    return RecordSummary(file=file, passed=record["passed"], target=target)


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
