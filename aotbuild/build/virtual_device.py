"""The device as its askers see it: figures for torch, an interface for Dynamo, a driver for Triton.

All from a row of the GPU table. `virtual_gpu` registers them; nothing here changes any state.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aotbuild import gpus
from aotbuild.build.cubins import read_cubin
from aotbuild.errors import BuildError
from aotbuild.gpus import Gpu


def properties(gpu: Gpu) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` answers."""
    return SimpleNamespace(
        name=gpu.title,
        major=gpu.major,
        minor=gpu.minor,
        multi_processor_count=gpu.sms,
        total_memory=gpu.memory_gib << 30,
        regs_per_multiprocessor=gpus.REGISTERS_PER_SM,
        max_threads_per_multi_processor=gpu.architecture.threads_per_sm,
        max_threads_per_block=gpus.THREADS_PER_BLOCK,
        warp_size=gpus.WARP_SIZE,
        shared_memory_per_block=gpus.STATIC_SHARED_MEMORY_BYTES,
        shared_memory_per_block_optin=gpu.shared_memory_bytes,
        shared_memory_per_multiprocessor=gpu.shared_memory_sm_bytes,
        L2_cache_size=gpu.l2_mib << 20,
        clock_rate=gpu.clock_mhz * 1000,
        memory_clock_rate=gpu.memory_clock_khz,
        memory_bus_width=gpu.memory_bus_bits,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
    )


def interface(gpu: Gpu) -> type:
    """Dynamo's view of the device; what isn't answered here is torch's own."""
    from torch._dynamo.device_interface import CudaInterface

    def fixed(value: Any) -> Any:
        return staticmethod(lambda *_, **__: value)

    answers = {
        "current_device": fixed(0),
        "get_device_properties": fixed(properties(gpu)),
        "set_device": fixed(None),
    }
    return type(
        "VirtualCudaInterface",
        (CudaInterface,),
        {
            **answers,
            "Worker": type("Worker", (CudaInterface.Worker,), dict(answers)),
            "device_count": fixed(1),
            "exchange_device": fixed(0),
            "get_compute_capability": fixed(gpu.capability),
            "get_raw_stream": fixed(0),
            "is_available": fixed(True),
            "is_bf16_supported": fixed(gpu.major >= 8),
            "is_triton_capable": fixed(True),
            "maybe_exchange_device": fixed(0),
            "memory_allocated": fixed(0),
            "raise_if_triton_unavailable": fixed(None),
            "synchronize": fixed(None),
        },
    )


def triton_driver(gpu: Gpu) -> Any:
    """Triton's view of the device: a driver that loads nothing, and says what loading would."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    limits = {
        "max_shared_mem": gpu.shared_memory_bytes,
        "max_num_regs": gpus.REGISTERS_PER_SM,
        "multiprocessor_count": gpu.sms,
        "warpSize": gpus.WARP_SIZE,
        "sm_clock_rate": gpu.clock_mhz * 1000,
        "mem_clock_rate": gpu.memory_clock_khz,
        "mem_bus_width": gpu.memory_bus_bits,
    }

    def load(_name: str, cubin: bytes, *_: int) -> tuple[Any, ...]:
        (kernel,) = read_cubin(cubin)
        return None, 0, kernel.registers, kernel.spilled_bytes // 4, gpus.THREADS_PER_BLOCK

    def refuse(*_: Any, **__: Any) -> Any:
        raise BuildError("A GPU that isn't there can't run or time a kernel.")

    class VirtualDriver(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils = SimpleNamespace(
                get_device_properties=lambda _: limits,
                load_binary=load,
                unload_module=lambda _: None,
            )
            self.launcher_cls = lambda *_: refuse
            self.get_device_capability = lambda *_: (gpu.major, gpu.minor)
            self.get_current_device = lambda: 0
            self.set_current_device = lambda _: None
            self.get_current_stream = lambda *_: 0
            self.get_device_interface = lambda: torch.cuda

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", gpu.capability, gpus.WARP_SIZE)

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        map_python_to_cpp_type = get_benchmarker = refuse
        get_empty_cache_for_benchmark = clear_cache = refuse

    return VirtualDriver
