"""What the machine code inside a package says of itself. Reads the library; never runs it.

Which GPU the code is for is decided elsewhere; here a finished `.so` is held against it.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path
from typing import Any

from aotbuild.errors import BuildError, ToolchainError
from aotbuild.gpus import Gpu, find_gpu
from aotbuild.target import Target

_ELF = b"\x7fELF\x02\x01"
_EM_CUDA = 190
_ACCELERATED_FROM = 9
"""From compute capability 9.0 on, Triton compiles for `sm_90a`: that one architecture alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of a cubin.

    Attributes:
        name: its symbol.
        arch: "sm_80", or "sm_90a" for code that runs on that one architecture alone.
        registers: of each thread.
        spilled_bytes: of each thread, in local memory.
        shared_bytes: of each block, as far as the code fixes it; dynamic shared memory isn't here.
    """

    name: str
    arch: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CubinReport:
    """All kernels of a library.

    Attributes:
        arch: of every one of them.
        cubins: how many images there are.
        kernels: sorted by name.
    """

    arch: str
    cubins: int
    kernels: tuple[Kernel, ...]

    @property
    def spilling(self) -> tuple[str, ...]:
        """Names of the kernels that spill registers."""
        return tuple(k.name for k in self.kernels if k.spilled_bytes)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for the manifest's checks."""
        return {
            "arch": self.arch,
            "cubins": self.cubins,
            "kernels": [asdict(k) for k in self.kernels],
            "spilling": list(self.spilling),
        }


def check_cubins(library: Path, gpu: Gpu) -> CubinReport:
    """Read every cubin of a library and hold it against the GPU it was built for.

    Raises:
        BuildError: there is none, or one is of another architecture.
    """
    expected = f"{gpu.arch}a" if gpu.major >= _ACCELERATED_FROM else gpu.arch
    images = list(embedded_cubins(library.read_bytes()))
    kernels = sorted((k for image in images for k in read_cubin(image)), key=lambda k: k.name)
    others = [k for k in kernels if k.arch not in (expected, gpu.arch)]
    if others:
        named = ", ".join(f"{k.name} ({k.arch})" for k in others[:3])
        raise BuildError(
            f"{len(others)} of {len(kernels)} kernels aren't for {gpu.name} ({expected}): {named}. "
            "Remove the build's cache folder and build again."
        )
    archs = sorted({k.arch for k in kernels})
    return CubinReport(
        arch=archs[-1] if archs else expected, cubins=len(images), kernels=tuple(kernels)
    )


def embedded_cubins(library: bytes) -> Iterator[bytes]:
    """The CUDA ELF images inside a library, in the order in which they lie."""
    for match in re.finditer(re.escape(_ELF), library):
        start = match.start()
        header = library[start : start + 64]
        if len(header) == 64 and _number(header, 18, 2) == _EM_CUDA:
            sections = _number(header, 40, 8) + _number(header, 58, 2) * _number(header, 60, 2)
            segments = _number(header, 32, 8) + _number(header, 54, 2) * _number(header, 56, 2)
            yield library[start : start + max(sections, segments)]


@functools.lru_cache(maxsize=4096)
def read_cubin(image: bytes) -> tuple[Kernel, ...]:
    """The kernels of one cubin, by `cuobjdump`, which Triton brings.

    Raises:
        ToolchainError: it isn't there, or doesn't understand the image.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [str(cuobjdump()), "-elf", "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    arch = re.search(r"\bsm=(\w+)", done.stdout)
    found = re.findall(r"Function (\S+?):\s+(REG:.*)", done.stdout)
    if done.returncode or arch is None or not found:
        raise ToolchainError(f"cuobjdump can't read a kernel: {done.stderr or done.stdout[:200]}")
    return tuple(_kernel(name, f"sm_{arch[1]}", usage) for name, usage in found)


@functools.cache
def cuobjdump() -> Path:
    """Triton's `cuobjdump`.

    Raises:
        ToolchainError: Triton isn't installed, or came without it.
    """
    spec = util.find_spec("triton")
    tool = (
        Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump" if spec and spec.origin else None
    )
    if tool is None or not tool.is_file():
        raise ToolchainError(
            "Triton's cuobjdump isn't there, and the kernels' registers are read with it; "
            "`pip install --force-reinstall triton` brings it."
        )
    return tool


def check_symbols(library: Path, stub: Path | None = None) -> None:
    """Resolve every symbol of a library against this torch, in a process of its own.

    Args:
        library: the `.so`.
        stub: a folder with a stand-in for the driver's library, see `cuda_host`.

    Raises:
        BuildError: one isn't there; names it.
    """
    code = (
        "import ctypes, os, sys, torch\n"
        "stub = sys.argv[2]\n"
        "if stub: ctypes.CDLL(os.path.join(stub, 'libcuda.so.1'), mode=ctypes.RTLD_GLOBAL)\n"
        "try: ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_LOCAL)\n"
        "except OSError as e: sys.exit(str(e))\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", code, str(library.absolute()), str(stub or "")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise BuildError(
            f"The compiled library doesn't load with this torch: {lines[-1]}. Compiler and torch "
            "must belong together; see `aotbuild doctor`."
        )


def _kernel(name: str, arch: str, usage: str) -> Kernel:
    figures = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", usage)}
    return Kernel(
        name=name,
        arch=arch,
        registers=figures["REG"],
        spilled_bytes=max(figures["STACK"], figures["LOCAL"]),
        shared_bytes=figures["SHARED"],
    )


def _number(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def check_library(data: bytes, target: Target, work: Path) -> dict[str, Any]:
    """What the finished `.so` shows: every symbol resolves, every cubin is the target's.

    Raises:
        BuildError: one doesn't, or isn't.
    """
    library = work / "checked.so"
    library.write_bytes(data)
    if target.device != "cuda":
        check_symbols(library)
        return {}
    check_symbols(library, work / "cuda" / "lib64")
    gpu = find_gpu(target.arch)
    report = check_cubins(library, gpu)
    largest = max((k.shared_bytes for k in report.kernels), default=0)
    if largest > gpu.shared_memory_bytes:
        raise BuildError(
            f"A kernel needs {largest} bytes of shared memory a block; {gpu.name} has "
            f"{gpu.shared_memory_bytes}."
        )
    return {"cubins": report.to_json()}
