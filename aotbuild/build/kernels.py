"""Triton kernels of a build without a device: one configuration each, chosen without measuring.

Tried with torch 2.11.0 and 2.14.1.
Source: https://github.com/pytorch/pytorch/blob/v2.14.1/torch/_inductor/runtime/triton_heuristics.py
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from aotbuild.build.cubins import read_cubin
from aotbuild.gpus import Gpu

Config = dict[str, int]
"""One choice for a kernel: block sizes, `num_warps`, `num_stages`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KernelRecord:
    """One Triton kernel as it was compiled.

    Attributes:
        name: Inductor's.
        digest: of its source and sizes without the name; the key in a tuning table.
        config: the configuration that was chosen.
        registers: of each thread.
        spills: 32-bit words of each thread in local memory.
        shared_bytes: of each block.
    """

    name: str
    digest: str
    config: Config
    registers: int
    spills: int
    shared_bytes: int


@dataclasses.dataclass(slots=True)
class KernelStats:
    """What one build compiled: kernels, the configurations tried for them, seconds."""

    kernels: list[KernelRecord] = dataclasses.field(default_factory=list)
    configurations: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """What the manifest's checks record: no times, which differ from build to build."""
        return {
            "kernels": len(self.kernels),
            "configurations": self.configurations,
            "spilling": sorted(k.name for k in self.kernels if k.spills),
            "registers_max": max((k.registers for k in self.kernels), default=0),
            "shared_bytes_max": max((k.shared_bytes for k in self.kernels), default=0),
        }


def cpp_wrapper(stats: KernelStats) -> Any:
    """Inductor's C++ wrapper, which tunes by running; this one compiles, chooses and saves."""
    from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    class VirtualCppWrapper(CppWrapperGpu):
        @staticmethod
        def create(*_: Any, **__: Any) -> VirtualCppWrapper:
            return VirtualCppWrapper()

        def generate_and_run_autotune_block(self) -> None:
            start = time.perf_counter()
            self.kernel_autotune_defs.splice("async_compile.wait(globals())\ndel async_compile")
            scope: dict[str, Any] = {}
            exec(self.kernel_autotune_defs.getvalue(), scope)
            for kernel in list(scope.values()):
                if isinstance(kernel, CachingAutotuner):
                    stats.kernels.append(_choose(kernel))
            stats.seconds += time.perf_counter() - start

    return VirtualCppWrapper


def _choose(autotuner: Any) -> KernelRecord:
    """Save the one configuration that was kept, where the wrapper's code looks for it."""
    if not autotuner.launchers:
        autotuner.precompile()
    launcher = autotuner.launchers[0]
    autotuner.launchers = [launcher]
    autotuner.save_gpu_kernel(0, launcher)
    return record_of(autotuner, launcher)


def record_of(autotuner: Any, launcher: Any) -> KernelRecord:
    """What was chosen for a kernel, and what it costs."""
    config = launcher.config
    return KernelRecord(
        name=autotuner.inductor_meta.get("kernel_name", ""),
        digest=_digest(autotuner),
        config={**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages},
        registers=launcher.n_regs,
        spills=launcher.n_spills,
        shared_bytes=launcher.shared,
    )


def first_good(
    stock: Callable[[Any], None], gpu: Gpu, stats: KernelStats, tuning: Mapping[str, Config]
) -> Callable[[Any], None]:
    """Compile configurations in Inductor's order and stop at the first that is good.

    The choice is the same as from compiling them all: the first without spills that fits, else
    the first that fits, else the last, which Inductor then compiles without pipelining.
    """
    from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError

    def precompile(autotuner: Any) -> None:
        if autotuner.compile_results or not autotuner.configs:
            return stock(autotuner)
        fits, last, failure = None, None, None
        for config in _ordered(autotuner, tuning):
            autotuner.configs, autotuner.compile_results = [config], []
            stats.configurations += 1
            try:
                stock(autotuner)
            except NoTritonConfigsError as e:
                failure = e
                continue
            last = autotuner.compile_results
            kernel = last[0].kernel
            if kernel.metadata.shared <= gpu.shared_memory_bytes:
                fits = fits or last
                if not any(k.spilled_bytes for k in read_cubin(kernel.asm["cubin"])):
                    return None
        if failure is not None and last is None:
            raise failure
        autotuner.compile_results = fits or last
        autotuner.configs = None
        return None

    return precompile


def _ordered(autotuner: Any, tuning: Mapping[str, Config]) -> list[Any]:
    """Inductor's configurations, a measured one first where the table has it."""
    import triton

    configs = list(autotuner.configs)
    measured = tuning.get(_digest(autotuner)) if tuning else None
    if measured is None:
        return configs
    blocks = {k: v for k, v in measured.items() if k not in ("num_warps", "num_stages")}
    chosen = triton.Config(
        blocks, num_warps=measured["num_warps"], num_stages=measured["num_stages"]
    )
    return [chosen, *configs]


def _digest(autotuner: Any) -> str:
    """16 hex digits over a kernel's source and size hints, whatever its name."""
    source = autotuner.fn.src.replace(autotuner.fn.__name__, "kernel")
    return hashlib.sha256(f"{source}\n{autotuner.size_hints}".encode()).hexdigest()[:16]
