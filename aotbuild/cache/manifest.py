"""The manifest: everything a loader must know of an artifact before it touches native code.

Reads no file (`store` does).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotbuild.cache.backend import check_backend
from aotbuild.cache.constant import Constant
from aotbuild.cache.files import FileRecord, Packed, weights_part
from aotbuild.cache.identity import ModuleIdentity
from aotbuild.cache.key import PART_NAMES, Part, key_of
from aotbuild.cache.signature import DEVICES, DTYPE, Signature
from aotbuild.cache.verification import check_record
from aotbuild.canonical import (
    are_numbers,
    check_format,
    check_texts,
    checked_fields,
    checked_list,
    is_sealed,
    matches,
    parse_json,
    sealed,
)
from aotbuild.errors import FormatError, ManifestError
from aotbuild.target import Target

__all__ = ["FORMAT", "Constant", "Manifest", "ModuleIdentity"]

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One artifact.

    Attributes:
        format: version of this document; others are refused.
        key: 64 hex digits over `parts`.
        backend: "aot", a package of AOTInductor's; or "inductor-cache", a bundle of caches.
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
        package: `package.pt2`, or `jit-cache.zip`.
        library: the `.so` inside the package; None in a bundle, which holds many.
        packed: the constants that lie beside the package; None: the artifact is weightless.
        checks: what the build itself checked: kernels, registers, attention kinds, symbols.
        provenance: versions, base checkpoint and revision, whether it was built across.
        verification: records made by the build; empty where the build machine can't run the target.
    """

    format: int
    key: str
    backend: str
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
    library: FileRecord | None
    packed: Packed | None
    checks: dict[str, Any]
    provenance: dict[str, Any]
    verification: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        check_format(self.format, FORMAT)
        check_texts("manifest", self, "key", "backend", "component", "method", "scope", "precision")
        if tuple(p.name for p in self.parts) != PART_NAMES:
            raise ValueError(f"parts: expected {', '.join(PART_NAMES)}, in this order")
        if self.key != key_of(self.parts):
            raise ValueError("key isn't the digest of its parts")
        weights = weights_part(None if self.packed is None else self.packed.digest)
        if next((p.value for p in self.parts if p.name == "weights"), None) != weights:
            raise ValueError("the key's part 'weights' isn't what packed says")
        check_backend(self.backend, self.parts, self.package, self.library, self.packed)
        if self.scope not in ("full", "regional"):
            raise ValueError(f"scope {self.scope!r} is neither full nor regional")
        for name in ("state", "recipe", "checks", "provenance"):
            if not isinstance(getattr(self, name), dict):
                raise ValueError(f"{name}: expected an object")
        self._check_names()
        if not _are_examples(self.checks.get("example_values", {})):
            raise ValueError("checks: example_values isn't an object of lists of numbers")
        for record in self.verification:
            check_record(record, self.key)

    def _check_names(self) -> None:
        if not all(matches(r"\w[\w.-]*", part) for part in (self.component, *self._place)):
            raise ValueError(
                f"{self.folder!r}: component, architecture or dtype isn't a plain name"
            )
        if not self.method.isidentifier() or not matches(DTYPE, self.precision):
            raise ValueError(f"{self.method!r} or {self.precision!r} isn't a plain name")
        if self.target.device not in DEVICES:
            raise ValueError(f"target: device {self.target.device!r} is none of {DEVICES}")

    @property
    def folder(self) -> str:
        """Where the artifact lies, below a store's or collection's root."""
        return "/".join(("artifacts", self.component, *self._place))

    @property
    def _place(self) -> tuple[str, str]:
        return self.target.slug, f"{self.signature.slug}-{self.key[:12]}"

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """What lies in the artifact's folder beside the manifest."""
        return (self.package,) if self.packed is None else (self.package, self.packed.file)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field, without the closing digest."""
        return {
            "format": self.format,
            "key": self.key,
            "backend": self.backend,
            "parts": [p.to_json() for p in self.parts],
            "component": self.component,
            "method": self.method,
            "scope": self.scope,
            "precision": self.precision,
            "module": self.module.to_json(),
            "signature": self.signature.to_json(),
            "state": self.state,
            "constants": [c.to_json() for c in self.constants],
            "target": self.target.to_json(),
            "recipe": self.recipe,
            "package": self.package.to_json(),
            "library": None if self.library is None else self.library.to_json(),
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
            d = checked_fields(cls, document, "manifest")
            return cls(
                **{
                    **d,
                    "parts": tuple(Part.from_json(p) for p in checked_list("parts", d["parts"])),
                    "module": ModuleIdentity(
                        **checked_fields(ModuleIdentity, d["module"], "module")
                    ),
                    "signature": Signature.from_json(d["signature"]),
                    "constants": tuple(
                        Constant.from_json(c) for c in checked_list("constants", d["constants"])
                    ),
                    "target": Target.from_json(d["target"]),
                    "package": FileRecord.from_json(d["package"], "package"),
                    "library": None
                    if d["library"] is None
                    else FileRecord.from_json(d["library"], "library"),
                    "packed": None if d["packed"] is None else Packed.from_json(d["packed"]),
                    "verification": tuple(checked_list("verification", d["verification"])),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise ManifestError(f"not a manifest that can be used: {e}") from e

    def to_bytes(self) -> bytes:
        """The canonical bytes of `manifest.json`: the document, its sha256 as the last entry."""
        return sealed(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "manifest.json") -> Manifest:
        """Read `manifest.json`; any byte that differs from `to_bytes` is refused.

        Raises:
            FormatError: a version that this aotbuild doesn't read.
            ManifestError: saying what is wrong, and `where`.
        """
        try:
            document = parse_json(data)
        except ValueError as e:
            raise ManifestError(f"{where} isn't a manifest: {e}. {_ADVICE}") from e
        _check_version(document, where)
        try:
            del document["sha256"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as e:
            raise ManifestError(f"{where} isn't a manifest: {e}. {_ADVICE}") from e
        if not is_sealed(data):
            raise ManifestError(f"{where} was altered: its sha256 isn't its text's. {_ADVICE}")
        try:
            manifest = cls.from_json(document)
        except ManifestError as e:
            raise ManifestError(f"{where}: {e}. {_ADVICE}") from e
        if manifest.to_bytes() != data:
            raise ManifestError(f"{where} was altered: it isn't in canonical form. {_ADVICE}")
        return manifest


def _check_version(document: object, where: str) -> None:
    """What another version's manifest holds, and how it is hashed, nobody knows here."""
    try:
        if isinstance(document, dict) and type(document.get("format")) is int:
            check_format(document["format"], FORMAT)
    except ValueError as e:
        raise FormatError(f"{where}: {e}. {_ADVICE}") from e


def _are_examples(values: object) -> bool:
    return isinstance(values, dict) and all(
        isinstance(v, list) and are_numbers(v) for v in values.values()
    )


_ADVICE = "Build or pull the artifact again; `aotbuild prune --broken` removes what can't be used"
