"""This machine as a `Target`: the one place that asks it. Judges nothing (`target` does)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aotbuild.target import Target, version_tuple

PACKAGES = ("torch", "diffusers", "torchao", "triton", "transformers")

_LEVELS = (
    ("x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
)


def this_machine(device: str | None = None) -> Target:
    """What this machine and its torch are.

    Args:
        device: "cpu" for the CPU although there is a GPU; "cuda" or "cuda:1" for that GPU; None for
            the first GPU that torch can use. Where there is no GPU the answer is always the CPU.
    """
    import torch

    kind = "cpu" if device == "cpu" else _accelerator(torch)
    common: dict[str, Any] = {
        "device": kind,
        "system": platform.system().lower(),
        "processor": platform.machine(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "glibc": _glibc(),
        "glibcxx": _glibcxx(),
    }
    if kind == "cpu":
        return Target(**common, arch=cpu_level())
    if kind != "cuda":
        return Target(**common, arch=kind)
    properties: Any = torch.cuda.get_device_properties(_index(device))
    return Target(
        **common,
        arch=f"sm_{properties.major}{properties.minor}",
        triton=version_of("triton"),
        shared_memory_bytes=properties.shared_memory_per_block_optin,
    )


_FLAGS = re.compile(rb"^flags[ \t]*:(.*)\n", re.MULTILINE)
_CHUNK_BYTES = 2048


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory_bytes() -> int:
    """What may still be used without swapping. Source: proc_meminfo(5), MemAvailable."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def default_store() -> Path:
    """`$AOTBUILD_STORE`, else `~/.cache/aotbuild`."""
    return Path(os.environ.get("AOTBUILD_STORE") or "~/.cache/aotbuild").expanduser()


def default_collections() -> tuple[str, ...]:
    """`$AOTBUILD_COLLECTIONS`: names of collections on the Hub, separated by commas."""
    names = os.environ.get("AOTBUILD_COLLECTIONS", "").split(",")
    return tuple(n.strip() for n in names if n.strip())


def allowed_owners() -> tuple[str, ...] | None:
    """`$AOTBUILD_ALLOWED_OWNERS`: whose collections may be loaded; None where all may."""
    names = os.environ.get("AOTBUILD_ALLOWED_OWNERS")
    return None if names is None else tuple(n.strip() for n in names.split(",") if n.strip())


def versions() -> dict[str, str | None]:
    """`installed` of the `PACKAGES` that every refusal may be about."""
    return installed(PACKAGES)


def installed(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each package, None where there is none; imports none."""
    return {name: version_of(name) for name in packages}


def version_of(package: str) -> str | None:
    """The installed version of `package`, None where there is none; doesn't import it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_level() -> str:
    """This CPU's x86-64 level, "x86-64-v3"; on other processors their name, "aarch64"."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return platform.machine()
    return level_of(cpu_flags())


def cpu_flags() -> frozenset[str]:
    """What the kernel says that this CPU can do, in its own words; empty where it doesn't say."""
    text = b""
    try:
        # The kernel asks each core how fast it is when its lines are read: the first one's will do.
        with Path("/proc/cpuinfo").open("rb", buffering=0) as file:
            while (flags := _FLAGS.search(text)) is None and (more := file.read(_CHUNK_BYTES)):
                text += more
    except OSError:
        return frozenset()
    return frozenset(flags[1].decode(errors="replace").split() if flags else ())


def level_of(flags: frozenset[str]) -> str:
    """The highest x86-64 level that the flags of `/proc/cpuinfo` cover.

    Source: x86-64 psABI, table 3.1 "Micro-Architecture Levels", in the kernel's names: `pni` is
    SSE3, `abm` is LZCNT, `xsave` stands for OSXSAVE.
    """
    level = "x86-64"
    for name, needed in _LEVELS:
        if not flags.issuperset(needed.split()):
            break
        level = name
    return level


def highest_version(data: bytes, prefix: str) -> str | None:
    """The highest version V of the strings "PREFIX_V" in a library's bytes."""
    found = re.findall(rb"%s_(\d+(?:\.\d+)+)\0" % prefix.encode(), data)
    return max((v.decode() for v in found), key=version_tuple, default=None)


def peak_memory_bytes() -> int:
    """The high-water mark of this process alone.

    Not `ru_maxrss`: a process inherits that from the one that started it.
    Source: proc_pid_status(5), VmHWM.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _accelerator(torch: Any) -> str:
    if torch.version.hip is not None and torch.cuda.is_available():
        return "rocm"
    if torch.cuda.is_available():
        return "cuda"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "xpu"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _index(device: str | None) -> int:
    return int(device.partition(":")[2] or 0) if device else 0


def _glibc() -> str | None:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None


def _glibcxx() -> str | None:
    """Of the libstdc++ that torch loaded: what the artifact will be linked against."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        loaded = re.search(r"\s(/\S*libstdc\+\+\.so\.6\S*)$", maps, re.MULTILINE)
        return highest_version(Path(loaded[1]).read_bytes(), "GLIBCXX") if loaded else None
    except OSError:
        return None
