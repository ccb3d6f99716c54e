"""A GPU that isn't there: what Inductor and Triton ask of a device while they compile for it.

Nothing runs on it. Four registries are written to and three names replaced, all undone on exit:

    torch._dynamo.device_interface          device queries
    torch._inductor.codegen.common          a C++ wrapper that compiles where the stock one tunes
    triton.runtime.driver                   the target, and "loading": reading a cubin's registers
    triton.backends.backends                so that Inductor keeps that driver
    torch.cuda.get_device_properties        the figures; the capability follows from them
    torch._inductor.graph.is_same_tensor    constants by identity, fake tensors have no pointer
    CachingAutotuner._precompile_worker     configurations one by one, up to the first that is good

`torch.cuda.is_available()` stays False, and must: fake tensors then bring a device guard of their
own. Tried with torch 2.11.0 and 2.14.1. A process builds one artifact and ends.
Source: https://github.com/pytorch/pytorch/tree/v2.14.1/torch/_inductor
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from aotbuild.build import virtual_device
from aotbuild.build.kernels import Config, KernelStats, cpp_wrapper, first_good
from aotbuild.errors import BuildError
from aotbuild.gpus import Gpu

_NEEDS_DEVICE = (
    "autotune_",
    "benchmark_",
    "coordinate_descent_",
    "dynamic_scale_rblock",
    "joint_graph_constant_folding",
    "max_autotune",
    "shape_padding",
    "triton.autotune_",
    "triton.cudagraph",
    "triton.multi_kernel",
)


def gpu_options(gpu: Gpu) -> dict[str, Any]:
    """Inductor's options that a build without a device needs, as far as this torch has them."""
    import torch._inductor.config as config

    options: dict[str, Any] = {
        "aot_inductor.embed_kernel_binary": True,
        "aot_inductor.package_constants_in_so": False,
        "always_keep_tensor_constants": True,
        "autotune_local_cache": False,
        "benchmark_epilogue_fusion": False,
        "benchmark_fusion": False,
        "benchmark_kernel": False,
        "compile_threads": 1,
        "coordinate_descent_tuning": False,
        "cpp.march": "x86-64-v3",
        "cpp.simdlen": 256,
        "cuda.arch": str(gpu.capability),
        "dynamic_scale_rblock": False,
        "joint_graph_constant_folding": False,
        "max_autotune": False,
        "max_autotune_gemm": False,
        "max_autotune_pointwise": False,
        "shape_padding": False,
        "triton.autotune_at_compile_time": True,
    }
    known = config.get_config_copy()
    return {name: value for name, value in options.items() if name in known}


def without_device(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A recipe's options without those that measure on a device, and the names left out."""
    dropped = tuple(sorted(name for name in options if name.startswith(_NEEDS_DEVICE)))
    return {n: v for n, v in options.items() if n not in dropped}, dropped


@contextlib.contextmanager
def virtual_gpu(gpu: Gpu, *, tuning: Mapping[str, Config] | None = None) -> Iterator[KernelStats]:
    """Let Inductor compile for a GPU that isn't there.

    Args:
        gpu: what is compiled for.
        tuning: measured choices by `KernelRecord.digest`; a kernel without one gets the first of
            Inductor's own configurations that neither spills registers nor outgrows the GPU.

    Raises:
        BuildError: a real GPU is visible.
    """
    import torch

    if torch.cuda.is_available():
        raise BuildError(
            "A GPU is visible, and a build for an absent one would mix the two up. Start the "
            "process with CUDA_VISIBLE_DEVICES set to nothing."
        )
    stats = KernelStats()
    with contextlib.ExitStack() as undo:
        undo.callback(_forget_answers)
        _register(undo, gpu)
        _replace(undo, gpu, stats, tuning or {})
        _forget_answers()
        yield stats


def _register(undo: contextlib.ExitStack, gpu: Gpu) -> None:
    """Answer for the device wherever Dynamo, Inductor's device queries and Triton ask."""
    import triton
    from torch._dynamo import device_interface

    device_interface.get_interface_for_device("cuda")  # registers the stock ones first
    for name in ("cuda", "cuda:0"):
        interface = virtual_device.interface(gpu)
        _set_item(undo, device_interface.device_interfaces, name, interface)
    backends, driver = triton.backends.backends, virtual_device.triton_driver(gpu)
    _set_item(undo, backends, "nvidia", dataclasses.replace(backends["nvidia"], driver=driver))
    _set_attribute(undo, triton.runtime.driver, "_active", driver())
    undo.enter_context(triton.knobs.compilation.scope())
    triton.knobs.compilation.disable_line_info = True  # line tables hold paths


def _replace(
    undo: contextlib.ExitStack, gpu: Gpu, stats: KernelStats, tuning: Mapping[str, Config]
) -> None:
    """Compile where Inductor would measure, and compare constants by identity."""
    import torch
    import torch._inductor.graph as graph
    from torch._inductor.codegen import common
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    common.init_backend_registration()
    codegen = common.device_codegens["cuda"]
    codegen = dataclasses.replace(codegen, cpp_wrapper_codegen=cpp_wrapper(stats))
    properties = virtual_device.properties(gpu)
    precompile = first_good(CachingAutotuner._precompile_worker, gpu, stats, tuning)
    _set_item(undo, common.device_codegens, "cuda", codegen)
    _set_attribute(undo, torch.cuda, "get_device_properties", lambda *_: properties)
    _set_attribute(undo, graph, "is_same_tensor", lambda one, other: one is other)
    _set_attribute(undo, CachingAutotuner, "_precompile_worker", precompile)


def _set_item(undo: contextlib.ExitStack, table: dict[str, Any], key: str, value: Any) -> None:
    if key in table:
        undo.callback(table.__setitem__, key, table[key])
    else:
        undo.callback(table.pop, key, None)
    table[key] = value


def _set_attribute(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _forget_answers() -> None:
    """Drop what was memoised about the device: importing diffusers caches `has_triton()`."""
    import torch._inductor.codegen.cuda.cuda_env as cuda_env
    import torch._inductor.runtime.hints as hints
    import torch._inductor.utils as inductor_utils
    import torch.utils._triton as triton_utils

    owners: tuple[Any, ...] = (
        cuda_env,
        hints,
        inductor_utils,
        triton_utils,
        hints.DeviceProperties,
    )
    for owner in owners:
        for name in list(vars(owner)):
            clear = getattr(getattr(owner, name), "cache_clear", None)
            if clear is not None:
                clear()
