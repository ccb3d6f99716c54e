"""One artifact of `bench coverage` as a row: what was planned, what came of it, what it took.

Which rows a table keeps is `coverage_table`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from aotbuild.build.request import Built, Planned
from aotbuild.cache.constant import Constant
from aotbuild.cache.manifest import Manifest
from aotbuild.recipe import Recipe

SECONDS = ("rehearse_s", "export_s", "compile_s", "package_s", "verify_s")
MEASURED = (*SECONDS, "peak_bytes", "processor", "cores", "date")
"""What a build alone knows, and no artifact keeps: its bytes are the same wherever it is built."""

_LONGEST_ERROR = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One recipe as one run builds it: rows of the same one belong together.

    Attributes:
        recipe: its name.
        arch: of the target, "sm_80".
        scope: "full" or "regional".
        quantization: "int8dq" where a component is quantized on that target, else "none".
    """

    recipe: str
    arch: str
    scope: str
    quantization: str

    @classmethod
    def of(cls, recipe: Recipe, arch: str, device: str, scope: str) -> Asked:
        """The recipe with what the command line changed, on a target."""
        found = {c.quantization for c in recipe.on(device).components.values()} - {"none"}
        return cls(
            recipe=recipe.name,
            arch=arch,
            scope=scope,
            quantization="+".join(sorted(found)) or "none",
        )

    def row(self) -> Row:
        """A row that says no more than this."""
        return Row(
            recipe=self.recipe,
            arch=self.arch,
            scope=self.scope,
            quantization=self.quantization,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. None: not known, or not applicable.

    Attributes:
        recipe, arch, scope, quantization: as `Asked`.
        unit: "unet" or "vae.decode"; empty where the recipe couldn't be rehearsed.
        module: class that was compiled.
        blocks: how many repeated blocks it serves; None for a whole component.
        call: the pipeline call it was rehearsed with: "512x512, batch 1, guided".
        input: its first input, "sample 2x4x64x64 float16".
        parameters: elements of the weights that the artifact binds, position tables included.
        constants: how many tensors these are.
        kernels: Triton kernels in it; a CPU build has none.
        attention: "flash 32", as lowered for a GPU; "none" where a GPU build has none.
        rehearse_s, export_s, compile_s, package_s, verify_s: the build's stages.
        peak_bytes: most resident memory of the process that compiled, or of its host compiler.
        package_bytes: of `package.pt2`.
        verified: where records say that it computes what eager does.
        torch, diffusers: versions it was built with.
        processor, cores, date: where and when the seconds were measured.
        key: of the artifact.
        error: why there is none, in one line.
    """

    recipe: str
    arch: str
    scope: str
    quantization: str
    unit: str = ""
    module: str = ""
    blocks: int | None = None
    call: str = ""
    input: str = ""
    parameters: int | None = None
    constants: int | None = None
    kernels: int | None = None
    attention: str = ""
    rehearse_s: float | None = None
    export_s: float | None = None
    compile_s: float | None = None
    package_s: float | None = None
    verify_s: float | None = None
    peak_bytes: int | None = None
    package_bytes: int | None = None
    verified: str = ""
    torch: str = ""
    diffusers: str = ""
    processor: str = ""
    cores: str = ""
    date: str = ""
    key: str = ""
    error: str = ""

    @property
    def asked(self) -> Asked:
        """Whose row it is."""
        return Asked(**{f.name: getattr(self, f.name) for f in fields(Asked)})

    @property
    def total_s(self) -> float | None:
        """All stages together; None where they weren't measured."""
        known = [s for name in SECONDS if (s := getattr(self, name)) is not None]
        return sum(known) if known else None

    def measured_as(self, other: Row | None) -> Row:
        """This row with the seconds and memory of `other`, which built the same bytes."""
        if other is None or other.total_s is None or self.total_s is not None:
            return self
        return replace(self, **{name: getattr(other, name) for name in MEASURED})


def planned_row(asked: Asked, planned: Planned) -> Row:
    """What is known of an artifact before it is built."""
    return replace(
        asked.row(),
        unit=planned.component,
        blocks=len(planned.blocks) or None,
        call=f"{planned.resolution}, batch {planned.batch}, {planned.variant}",
        input=next(planned.signature.sizes(), "no tensors"),
        rehearse_s=None if planned.cached else round(planned.rehearse_s, 3),
        key=planned.key,
    )


def built_row(
    row: Row,
    built: Built,
    manifest: Manifest,
    records: Iterable[Mapping[str, Any]],
    facts: Mapping[str, str],
) -> Row:
    """`row` with what came of it.

    Args:
        records: of its verification.
        facts: of this machine, see `bench.facts`.
    """
    checks, versions = manifest.checks, _versions(manifest)
    measured: dict[str, Any] = {n: built.seconds.get(n.removesuffix("_s")) for n in SECONDS}
    if not built.cached:
        measured |= {n: facts[n] for n in ("processor", "cores", "date")}
    return replace(
        row,
        module=manifest.module.class_name,
        input=next(manifest.signature.sizes(), "no tensors"),
        parameters=parameters(manifest.constants),
        constants=len(manifest.constants),
        kernels=checks.get("kernels"),
        attention=attention(manifest),
        peak_bytes=built.peak_bytes,
        package_bytes=manifest.package.bytes,
        verified=verified(records),
        torch=manifest.target.torch,
        diffusers=versions.get("diffusers", ""),
        **measured,
    )


def failed_row(row: Row, error: Exception) -> Row:
    """`row` with why there is no artifact."""
    name = "" if str(error) else type(error).__name__
    line = " ".join(f"{name}{error}".split())
    cut = line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 1]}…"
    return replace(row, rehearse_s=None, error=cut)


def parameters(constants: Iterable[Constant]) -> int:
    """Elements of the weights that these bind: no scales of int8 rows, no stored values."""
    return sum(
        math.prod(c.shape)
        for c in constants
        if c.value is None and not (c.rule.startswith("int8_rows/") and c.dtype != "int8")
    )


def attention(manifest: Manifest) -> str:
    """ "flash 28, efficient 28"; empty for a CPU, where torch chooses at run time."""
    found = manifest.checks.get("attention")
    if not isinstance(found, Mapping):
        return ""
    return ", ".join(f"{kind} {count}" for kind, count in sorted(found.items())) or "none"


def verified(records: Iterable[Mapping[str, Any]]) -> str:
    """ "x86-64-v4 (torch 2.13.0)", each machine and torch once; empty where none passed."""
    passed = [r["target"] for r in records if r.get("passed") is True]
    return ", ".join(sorted({f"{t['arch']} (torch {t['torch']})" for t in passed}))


def _versions(manifest: Manifest) -> dict[str, str]:
    found: Any = next((p.value for p in manifest.parts if p.name == "versions"), {})
    return dict(found) if isinstance(found, Mapping) else {}
