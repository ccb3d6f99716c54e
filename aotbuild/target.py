"""What an artifact runs on, and the verdict whether a machine is such a one.

Asks the machine nothing (`probe` does).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from aotbuild.canonical import check_texts, checked_fields, shown

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

    def __post_init__(self) -> None:
        check_texts("target", self, "device", "arch", "system", "processor", "torch")
        for name in ("cuda", "triton", "glibc", "glibcxx"):
            if getattr(self, name) is not None:
                check_texts("target", self, name)
        size = self.shared_memory_bytes
        if size is not None and (type(size) is not int or size < 0):
            raise ValueError(f"target: shared_memory_bytes is {shown(size)}, not a size in bytes")

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
    """The artifact doesn't serve here, and why: the first reason, and those beside it."""

    reason: str
    others: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason, the weightiest first; each is a sentence of its own."""
        return (self.reason, *self.others)


Verdict: TypeAlias = Accepted | Rejected

DeviceKind = Literal["cpu", "cuda"]


def version_tuple(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0a0+git1" -> (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(n) for n in match[0].split(".")) if match else ()


def is_release(torch: str) -> bool:
    """Whether a torch version is a published release; nightlies, vendor and git builds aren't.

    Source: the local suffixes of https://download.pytorch.org/whl.
    """
    pattern = r"\d+\.\d+\.\d+(\.post\d+)?(\+(cpu|cpu\.cxx11\.abi|cu\d+|rocm\d+(\.\d+)*|xpu))?"
    return re.fullmatch(pattern, torch) is not None


def verdict_of(reasons: Collection[str], note: str | None = None) -> Verdict:
    """Rejected with all of `reasons`, or Accepted with `note` where there are none."""
    first, *others = reasons or (None,)
    return Accepted(note) if first is None else Rejected(first, tuple(others))


def judge(artifact: Target, machine: Target, *, verified_torch: Collection[str] = ()) -> Verdict:
    """Whether what was built for `artifact` runs on `machine`.

    Args:
        artifact: the target of a manifest.
        machine: what `probe.this_machine` found, for the device kind that is wanted: a machine with
            a GPU is two targets, and its CPU one is what a CPU artifact is judged by.
        verified_torch: full version strings of torch with which a verification record says that the
            artifact works; builds of torch that aren't releases are accepted by these alone.

    Source: CUDA C++ Programming Guide, "Binary Compatibility"; x86-64 psABI, table 3.1.
    """
    reasons = [
        *_platform_reasons(artifact, machine),
        *_device_reasons(artifact, machine),
        *_torch_reasons(artifact, machine, verified_torch),
        *_libc_reasons(artifact, machine),
    ]
    exact = artifact.arch.rstrip("af") == machine.arch or artifact.arch == machine.arch
    return verdict_of(reasons, None if exact else f"untuned: built for {artifact.arch}")


def _platform_reasons(artifact: Target, machine: Target) -> Iterator[str]:
    if artifact.system != machine.system:
        yield f"It is built for {artifact.system}, and this is {machine.system}."
    if artifact.processor != machine.processor:
        yield f"It is built for {artifact.processor}, and this processor is {machine.processor}."


def _device_reasons(artifact: Target, machine: Target) -> Iterator[str]:
    if artifact.device == machine.device:
        yield from (_gpu_reasons if artifact.device == "cuda" else _cpu_reasons)(artifact, machine)
    elif artifact.device == "cpu":
        yield f"It runs on the CPU, and {machine.device} is what is wanted here."
    elif machine.device == "rocm":
        yield f"Its kernels are NVIDIA's ({artifact.arch}), and this torch is built for AMD's ROCm."
    elif machine.device == "xpu":
        yield f"Its kernels are NVIDIA's ({artifact.arch}), and the GPU here is an Intel one (XPU)."
    elif machine.device == "mps":
        yield f"Its kernels are NVIDIA's ({artifact.arch}), and the GPU here is Apple's (MPS)."
    elif machine.cuda is None:
        yield (
            f"It needs an NVIDIA GPU ({artifact.arch}) and a CUDA build of torch; "
            f"this torch, {machine.torch}, is built without CUDA."
        )
    else:
        yield f"It needs an NVIDIA GPU ({artifact.arch}), and torch finds no GPU on this machine."


def _cpu_reasons(artifact: Target, machine: Target) -> Iterator[str]:
    levels = CPU_LEVELS
    if artifact.arch == machine.arch:
        return
    if artifact.arch not in levels or machine.arch not in levels:
        yield f"Its code is for {artifact.arch}, and this CPU is {machine.arch}."
    elif levels.index(artifact.arch) > levels.index(machine.arch):
        yield f"Its code needs a CPU of level {artifact.arch}, and this one is {machine.arch}."


_ALONE_FROM = 9
"""From compute capability 9.0 on Triton compiles for the exact GPU alone (sm_90a, sm_100a)."""


def _gpu_reasons(artifact: Target, machine: Target) -> Iterator[str]:
    built, here = _capability(artifact.arch), _capability(machine.arch)
    if built is None or here is None:
        yield f"Its kernels are for {artifact.arch}, which can't be compared with {machine.arch}."
    elif (built[2] or built[0] >= _ALONE_FROM) and built[:2] != here[:2]:
        yield (
            f"Its kernels are for {artifact.arch}, which runs on compute capability "
            f"{built[0]}.{built[1]} alone, and the GPU here is {machine.arch}."
        )
    elif built[0] != here[0]:
        yield f"Its kernels are for {artifact.arch}, another generation than {machine.arch} here."
    elif built[1] > here[1]:
        yield f"Its kernels are for {artifact.arch}, newer than the GPU here, {machine.arch}."
    elif artifact.arch != machine.arch and {artifact.arch, machine.arch} & _TEGRA:
        yield f"Its kernels are for {artifact.arch}, and Tegra shares no code with {machine.arch}."
    needed, has = artifact.shared_memory_bytes or 0, machine.shared_memory_bytes or 0
    if needed > has:
        yield f"Its kernels need {needed} bytes of shared memory a block; the GPU here has {has}."


_TEGRA = {"sm_53", "sm_62", "sm_72", "sm_87"}


def _capability(arch: str) -> tuple[int, int, str] | None:
    """(major, minor, suffix) of "sm_90a"."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    return (int(match[1]), int(match[2]), match[3]) if match else None


def _torch_reasons(artifact: Target, machine: Target, verified: Collection[str]) -> Iterator[str]:
    built, here = version_tuple(artifact.torch)[:2], version_tuple(machine.torch)[:2]
    if built != here:
        yield (
            f"It is built with torch {artifact.torch}, and this is torch {machine.torch}; "
            f"it needs {'.'.join(map(str, built))}."
        )
    elif machine.torch not in verified:
        for torch in dict.fromkeys((artifact.torch, machine.torch)):
            if not is_release(torch):
                yield (
                    f"torch {torch} isn't a release, and no verification record says that the "
                    f"artifact works with {machine.torch}; `aotbuild verify` makes one."
                )
    if artifact.device == "cuda" == machine.device:
        built, here = version_tuple(artifact.cuda or "")[:1], version_tuple(machine.cuda or "")[:1]
        if built != here:
            yield f"It is built for CUDA {artifact.cuda}, and this torch is for {machine.cuda}."


def _libc_reasons(artifact: Target, machine: Target) -> Iterator[str]:
    for name, asks, has in (
        ("GLIBC", artifact.glibc, machine.glibc),
        ("GLIBCXX", artifact.glibcxx, machine.glibcxx),
    ):
        if asks is not None and version_tuple(asks) > version_tuple(has or ""):
            yield f"It needs {name} {asks}, and this system has {has or 'none'}."
