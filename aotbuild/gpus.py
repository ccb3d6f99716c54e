"""The GPUs that can be built for without having one: names to figures. Knows no torch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from aotbuild.errors import TargetError
from aotbuild.target import version_tuple

WARP_SIZE = 32
REGISTERS_PER_SM = 65536
THREADS_PER_BLOCK = 1024
STATIC_SHARED_MEMORY_BYTES = 48 << 10
"""The same from compute capability 7.0 on; the last is what a block gets without opting in."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a compute capability fixes, whatever the GPU.

    Attributes:
        threads_per_sm: resident threads of one multiprocessor.
        shared_memory_sm_bytes: of one multiprocessor.
        shared_memory_bytes: the most that one block may opt in to.
        default: the GPU that `sm_XY` alone stands for.
    """

    threads_per_sm: int
    shared_memory_sm_bytes: int
    shared_memory_bytes: int
    default: str


ARCHITECTURES = {
    (7, 0): Architecture(2048, 96 << 10, 96 << 10, "v100"),
    (7, 5): Architecture(1024, 64 << 10, 64 << 10, "t4"),
    (8, 0): Architecture(2048, 164 << 10, 163 << 10, "a100"),
    (8, 6): Architecture(1536, 100 << 10, 99 << 10, "a10"),
    (8, 9): Architecture(1536, 100 << 10, 99 << 10, "l4"),
    (9, 0): Architecture(2048, 228 << 10, 227 << 10, "h100"),
    (10, 0): Architecture(2048, 228 << 10, 227 << 10, "b200"),
    (12, 0): Architecture(1536, 100 << 10, 99 << 10, "rtx5090"),
}
"""Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, by published figures in the units of their documents.

    Attributes:
        name: what `--gpu` takes, "a100".
        title: what the driver calls it, "NVIDIA A100-SXM4-80GB".
        major: of the compute capability.
        minor: of the compute capability.
        sms: multiprocessors.
        l2_mib: second-level cache.
        memory_gib: device memory.
        clock_mhz: boost clock of the multiprocessors.
        bandwidth_gb_s: memory bandwidth in 10^9 bytes a second.
        memory_bus_bits: width of the memory interface.
        source: the document with these figures; `architecture` has its own.
    """

    name: str
    title: str
    major: int
    minor: int
    sms: int
    l2_mib: int
    memory_gib: int
    clock_mhz: int
    bandwidth_gb_s: int
    memory_bus_bits: int
    source: str

    @property
    def capability(self) -> int:
        """80 for compute capability 8.0."""
        return self.major * 10 + self.minor

    @property
    def arch(self) -> str:
        """The architecture as compilers spell it: "sm_80"."""
        return f"sm_{self.capability}"

    @property
    def architecture(self) -> Architecture:
        """What the compute capability alone fixes."""
        return ARCHITECTURES[self.major, self.minor]

    @property
    def shared_memory_bytes(self) -> int:
        """The most shared memory that one block may opt in to."""
        return self.architecture.shared_memory_bytes

    @property
    def shared_memory_sm_bytes(self) -> int:
        """The shared memory of one multiprocessor."""
        return self.architecture.shared_memory_sm_bytes

    @property
    def memory_clock_khz(self) -> int:
        """The clock at which a double data rate bus of this width gives the bandwidth."""
        return self.bandwidth_gb_s * 8_000_000 // (2 * self.memory_bus_bits)


# fmt: off
_ROWS = (
    #   name       driver's name             capability SMs  L2  GiB   MHz  GB/s  bits
    Gpu("v100",    "Tesla V100-SXM2-32GB",     7, 0,  80,   6,  32, 1530,  900, 4096,
        "NVIDIA Tesla V100 GPU Architecture, WP-08608-001"),
    Gpu("t4",      "Tesla T4",                 7, 5,  40,   4,  16, 1590,  320,  256,
        "NVIDIA Turing GPU Architecture, WP-09183-001; NVIDIA T4 data sheet"),
    Gpu("a100",    "NVIDIA A100-SXM4-80GB",    8, 0, 108,  40,  80, 1410, 2039, 5120,
        "NVIDIA A100 Tensor Core GPU Architecture; A100 80GB SXM data sheet"),
    Gpu("a10",     "NVIDIA A10",               8, 6,  72,   6,  24, 1695,  600,  384,
        "NVIDIA A10 data sheet; NVIDIA Ampere GA102 GPU Architecture"),
    Gpu("a10g",    "NVIDIA A10G",              8, 6,  80,   6,  24, 1695,  600,  384,
        "https://aws.amazon.com/ec2/instance-types/g5/ (80 RT cores); clock as A10's"),
    Gpu("rtx3090", "NVIDIA GeForce RTX 3090",  8, 6,  82,   6,  24, 1695,  936,  384,
        "NVIDIA Ampere GA102 GPU Architecture"),
    Gpu("l4",      "NVIDIA L4",                8, 9,  58,  48,  24, 2040,  300,  192,
        "NVIDIA Ada GPU Architecture; NVIDIA L4 data sheet"),
    Gpu("l40s",    "NVIDIA L40S",              8, 9, 142,  96,  48, 2520,  864,  384,
        "NVIDIA Ada GPU Architecture; NVIDIA L40S data sheet"),
    Gpu("rtx4090", "NVIDIA GeForce RTX 4090",  8, 9, 128,  72,  24, 2520, 1008,  384,
        "NVIDIA Ada GPU Architecture"),
    Gpu("h100",    "NVIDIA H100 80GB HBM3",    9, 0, 132,  50,  80, 1980, 3350, 5120,
        "NVIDIA H100 Tensor Core GPU Architecture; H100 SXM data sheet"),
    Gpu("h200",    "NVIDIA H200",              9, 0, 132,  50, 141, 1980, 4800, 6144,
        "NVIDIA H200 data sheet; what isn't there, as the H100 SXM's"),
    Gpu("b200",    "NVIDIA B200",             10, 0, 148, 126, 180, 1965, 8000, 8192,
        "HGX B200 data sheet (memory); SMs, L2 and clock are in no data sheet, as reported"),
    Gpu("rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170,  96,  32, 2407, 1792,  512,
        "NVIDIA RTX Blackwell GPU Architecture"),
)
# fmt: on

GPUS = {gpu.name: gpu for gpu in _ROWS}

_NEEDS_AMPERE = {"bf16": "fp16", "bfloat16": "fp16", "tf32": "fp32"}
"""Precisions that 8.0 brought, and what an older GPU has in their place."""

_FIRST_CUDA = {(10, 0): (12, 8), (12, 0): (12, 8)}
_LAST_CUDA = {(7, 0): (12, 9)}
"""CUDA versions whose compilers know the architecture. Source: CUDA 12.8 and 13.0 release notes."""

_FIRST_TRITON = {(10, 0): (3, 3), (12, 0): (3, 3)}
"""Source: Triton 3.3 release notes (Blackwell)."""


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, or the default one of an architecture, "sm_80".

    Raises:
        TargetError: no such GPU; names the nearest one.
    """
    wanted = name.strip().lower().replace("-", "").replace(" ", "")
    by_arch = {f"sm_{a * 10 + b}": entry.default for (a, b), entry in ARCHITECTURES.items()}
    found = GPUS.get(by_arch.get(wanted, wanted))
    if found is None:
        known = [*GPUS, *by_arch]
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]}? " if near else ""
        hint = "Type --gpu auto for the one that is here. " if wanted in ("cuda", "gpu") else hint
        raise TargetError(
            f"GPU {name!r} isn't known. {hint}Known are {', '.join(known)}, `auto` for the one "
            "that is here, and `cpu`."
        )
    return found


def find_device(title: str, major: int, minor: int) -> Gpu:
    """The table's row for a device that is there, by its driver's name, else by architecture.

    Raises:
        TargetError: its compute capability isn't in the table.
    """
    same = [g for g in _ROWS if (g.major, g.minor) == (major, minor)]
    if not same:
        raise TargetError(
            f"{title} has compute capability {major}.{minor}, which isn't known. Name a GPU of "
            f"an architecture that is: {', '.join(GPUS)}."
        )
    exact = [g for g in same if _plain(g.title) == _plain(title)]
    part = [g for g in same if g.name in _plain(title).split()]
    return (exact or part or [find_gpu(same[0].arch)])[0]


def check_gpu(gpu: Gpu, dtype: str, torch_cuda: str | None, triton: str | None) -> None:
    """Refuse what the GPU, this torch or this Triton can't do, before any work.

    Args:
        gpu: what is built for.
        dtype: a precision of `recipe.DTYPES` (which alone tells tf32), or torch's name.
        torch_cuda: the CUDA version torch was built with; None for a CPU build.
        triton: Triton's version; None where it isn't installed.

    Raises:
        TargetError: naming what to do instead.
    """
    capability = (gpu.major, gpu.minor)
    about = f"{gpu.name} ({gpu.arch})"
    if dtype in _NEEDS_AMPERE and gpu.major < 8:
        raise TargetError(
            f"{about} has no {dtype}, which needs compute capability 8.0; use "
            f"`--dtype {_NEEDS_AMPERE[dtype]}`."
        )
    if torch_cuda is None:
        raise TargetError(
            f"A build for {about} needs a CUDA build of torch, and this one is for the CPU alone. "
            "No GPU is needed: install the package torch of PyPI, whose Linux wheels are CUDA "
            "builds: `pip uninstall torch`, then `pip install torch`."
        )
    cuda = version_tuple(torch_cuda)
    if cuda < _FIRST_CUDA.get(capability, (0,)) or cuda[:1] > _LAST_CUDA.get(capability, (999,)):
        side = "up to" if capability in _LAST_CUDA else "from"
        bound = ".".join(map(str, {**_FIRST_CUDA, **_LAST_CUDA}[capability]))
        raise TargetError(
            f"{about} is known to CUDA {side} {bound}, and this torch is built with CUDA "
            f"{torch_cuda}; install a build of torch for such a CUDA, from "
            "https://pytorch.org/get-started/locally, or name another GPU."
        )
    if triton is None:
        raise TargetError(
            f"A build for {about} needs Triton, which isn't installed: `pip install triton`."
        )
    first = _FIRST_TRITON.get(capability, (0,))
    if version_tuple(triton) < first:
        raise TargetError(
            f"{about} needs Triton {'.'.join(map(str, first))} or later, found {triton}; "
            "`pip install --upgrade torch` brings its own."
        )


def _plain(title: str) -> str:
    return title.lower().replace("nvidia", "").replace("geforce", "").replace("-", " ").strip()
