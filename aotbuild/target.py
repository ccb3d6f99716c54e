"""What an artifact runs on, and the verdict whether a machine is such a one. Asks the machine nothing (`probe` does)."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from aotbuild.canonical import checked_fields

CPU_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A machine as an artifact needs it, or as `probe` found it: the same fields read both ways.

    Attributes:
        device: "cpu", "cuda"; "rocm", "xpu" and "mps" are found by `probe` and never built for.
        arch: "sm_80", or the x86-64 level "x86-64-v3"; `aarch64` and the like on other processors.
        system: `platform.system()` in lower case.
        processor: `platform.machine()`.
        torch: torch's full version string, "2.13.0+cpu".
        cuda: the CUDA version torch was built with, "13.0"; None on CPU builds.
        triton: Triton's version, on GPU targets.
        glibc: highest GLIBC symbol version that the `.so` asks for, or that the machine has.
        glibcxx: the same for GLIBCXX.
        shared_memory_bytes: the most shared memory one block of any kernel needs, or has.
    """

    device: str
    arch: str
    system: str
    processor: str
    torch: str
    cuda: str | None = None
    triton: str | None = None
    glibc: str | None = None
    glibcxx: str | None = None
    shared_memory_bytes: int | None = None

    @property
    def slug(self) -> str:
        """The folder name of this target's artifacts: its architecture."""
        return self.arch

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Target:
        """The inverse of `to_json`; unknown and missing fields are a ValueError."""
        return cls(**checked_fields(cls, document, "target"))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The artifact runs here; `note` says what is less than ideal, e.g. tuned for another GPU."""

    note: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The artifact doesn't serve here, and why."""

    reason: str


Verdict: TypeAlias = Accepted | Rejected

DeviceKind = Literal["cpu", "cuda"]


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0a0+git1" -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(n) for n in match[0].split(".")) if match else ()
