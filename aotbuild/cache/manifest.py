"""The manifest: everything a loader must know of an artifact before it touches native code.

Reads no file (`store` does).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from typing import Any

from aotbuild.cache.files import FileRecord, Packed, weights_part
from aotbuild.cache.key import Part, key_of
from aotbuild.cache.signature import Signature
from aotbuild.canonical import canonical_bytes, checked_fields, digest
from aotbuild.errors import ManifestError
from aotbuild.target import Target

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleIdentity:
    """Which module an artifact was compiled from.

    Attributes:
        class_name: "UNet2DConditionModel"; for a repeated block the block's class.
        config: the config that decides the architecture, without private keys.
        config_sha256: digest of `config`.
        source_sha256: digest over the source of the module's classes, see `loaders.state`.
    """

    class_name: str
    config: dict[str, Any]
    config_sha256: str
    source_sha256: str

    def __post_init__(self) -> None:
        if self.config_sha256 != digest(self.config):
            raise ValueError("module: config_sha256 isn't that of config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One tensor that the package asks for, and the rule that makes it.

    Attributes:
        name: the name the package knows it by (its "original FQN").
        rule: "tensor/1", the tensor at the one path of `sources`; "concat/1", those at `sources`
            joined along dimension 0, of which eager's become views; "stored/1", `value` itself.
        sources: paths in the eager module: parameter, buffer, or tensor attribute.
        shape: of the constant as bound.
        dtype: "float32".
        stride: the strides that the code reads it by.
        value: for "stored/1" the numbers, flat.
    """

    name: str
    rule: str
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    value: tuple[float, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `value` only where there is one."""
        document = _plain(self)
        if self.value is None:
            del document["value"]
        return document

    @classmethod
    def from_json(cls, document: object) -> Constant:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        d = checked_fields(cls, document, "constant")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in d.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One artifact.

    Attributes:
        format: version of this document; others are refused.
        key: 64 hex digits over `parts`.
        parts: the named inputs of the build, in their fixed order.
        component: the unit's name: "unet", "vae.decode", "vae.encode".
        method: the method of the component that is swapped: "forward", "decode", "_encode".
        scope: "full", or "regional" for a repeated block.
        precision: the dtype the pipeline was loaded in, "float16"; a component's constants may
            have another where the pipeline itself casts it (SDXL's VAE).
        module: the module's class, config and source.
        signature: the calls it serves.
        state: the module state that the export froze, see `loaders.state`.
        constants: the constant plan.
        target: the machine it runs on.
        recipe: the resolved recipe, as JSON.
        package: `package.pt2`.
        library: the `.so` inside the package.
        packed: the constants that lie beside the package; None: the artifact is weightless.
        checks: what the build itself checked: kernels, registers, attention kinds, symbols.
        provenance: versions, base checkpoint and revision, whether it was built across.
        verification: records made by the build; empty where the build machine can't run the target.
    """

    format: int
    key: str
    parts: tuple[Part, ...]
    component: str
    method: str
    scope: str
    precision: str
    module: ModuleIdentity
    signature: Signature
    state: dict[str, Any]
    constants: tuple[Constant, ...]
    target: Target
    recipe: dict[str, Any]
    package: FileRecord
    library: FileRecord
    packed: Packed | None
    checks: dict[str, Any]
    provenance: dict[str, Any]
    verification: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format!r} is unknown; this aotbuild reads {FORMAT}")
        if self.key != key_of(self.parts):
            raise ValueError("key isn't the digest of its parts")
        weights = weights_part(None if self.packed is None else self.packed.digest)
        if next((p.value for p in self.parts if p.name == "weights"), None) != weights:
            raise ValueError("the key's part 'weights' isn't what packed says")
        if self.scope not in ("full", "regional"):
            raise ValueError(f"scope {self.scope!r} is neither full nor regional")
        for name in ("state", "recipe", "checks", "provenance"):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f"{name}: expected an object")
        if not all(isinstance(record, dict) for record in self.verification):
            raise ValueError("verification: expected objects")
        if not all(re.fullmatch(r"\w[\w.-]*", part, re.ASCII) for part in self.folder.split("/")):
            raise ValueError(
                f"{self.folder!r}: component, architecture or dtype isn't a plain name"
            )

    @property
    def folder(self) -> str:
        """Where the artifact lies, below a store's or collection's root."""
        slug = f"{self.signature.slug}-{self.key[:12]}"
        return f"artifacts/{self.component}/{self.target.slug}/{slug}"

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """What lies in the artifact's folder beside the manifest."""
        return (self.package,) if self.packed is None else (self.package, self.packed.file)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field, without the closing digest."""
        return {
            "format": self.format,
            "key": self.key,
            "parts": [p.to_json() for p in self.parts],
            "component": self.component,
            "method": self.method,
            "scope": self.scope,
            "precision": self.precision,
            "module": _plain(self.module),
            "signature": self.signature.to_json(),
            "state": self.state,
            "constants": [c.to_json() for c in self.constants],
            "target": self.target.to_json(),
            "recipe": self.recipe,
            "package": self.package.to_json(),
            "library": self.library.to_json(),
            "packed": None if self.packed is None else self.packed.to_json(),
            "checks": self.checks,
            "provenance": self.provenance,
            "verification": list(self.verification),
        }

    @classmethod
    def from_json(cls, document: object) -> Manifest:
        """The inverse of `to_json`.

        Raises:
            ManifestError: unknown format, unknown or missing field, or a digest that isn't right.
        """
        try:
            if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
                raise ValueError(f"format {document['format']!r} is unknown, {FORMAT} is read")
            d = checked_fields(cls, document, "manifest")
            return cls(
                **{
                    **d,
                    "parts": tuple(Part.from_json(p) for p in d["parts"]),
                    "module": ModuleIdentity(
                        **checked_fields(ModuleIdentity, d["module"], "module")
                    ),
                    "signature": Signature.from_json(d["signature"]),
                    "constants": tuple(Constant.from_json(c) for c in d["constants"]),
                    "target": Target.from_json(d["target"]),
                    "package": FileRecord.from_json(d["package"], "package"),
                    "library": FileRecord.from_json(d["library"], "library"),
                    "packed": None if d["packed"] is None else Packed.from_json(d["packed"]),
                    "verification": tuple(d["verification"]),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise ManifestError(f"not a manifest that can be used: {e}") from e

    def to_bytes(self) -> bytes:
        """The canonical bytes of `manifest.json`: the document, its sha256 as the last entry."""
        body = canonical_bytes(self.to_json())
        return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "manifest.json") -> Manifest:
        """Read `manifest.json`; any byte that differs from `to_bytes` is refused.

        Raises:
            ManifestError: saying what is wrong, and `where`.
        """
        try:
            document = json.loads(data)
            recorded, actual = document.pop("sha256"), digest(document)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
            raise ManifestError(f"{where} isn't a manifest: {e}. {_ADVICE}") from e
        if recorded != actual:
            raise ManifestError(f"{where} was altered: its sha256 isn't its text's. {_ADVICE}")
        try:
            manifest = cls.from_json(document)
        except ManifestError as e:
            raise ManifestError(f"{where}: {e}. {_ADVICE}") from e
        if manifest.to_bytes() != data:
            raise ManifestError(f"{where} was altered: it isn't in canonical form. {_ADVICE}")
        return manifest


def _plain(record: ModuleIdentity | Constant) -> dict[str, Any]:
    """Its fields as they are; `asdict` copies what lies below, which costs a load milliseconds."""
    return {f.name: getattr(record, f.name) for f in fields(record)}


_ADVICE = "Build or pull the artifact again; `aotbuild prune --broken` removes what can't be used"
