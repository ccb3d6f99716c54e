"""Exported program in, AOTInductor's own package out; one process compiles one artifact. Repacks nothing (`package` does).

Private names of torch, each tried on torch 2.11.0, 2.13.0 and 2.14.1:

- `torch._inductor.aoti_compile_and_package`, `torch._inductor.config`: the documented entry,
  https://docs.pytorch.org/docs/stable/torch.compiler_aot_inductor.html
- `torch._inductor.graph.is_same_tensor`: compares data pointers, which fake tensors don't have,
  https://github.com/pytorch/pytorch/blob/main/torch/_inductor/graph.py
- `torch._inductor.cpu_vec_isa.valid_vec_isa_list`: what this CPU has, not what the target has,
  https://github.com/pytorch/pytorch/blob/main/torch/_inductor/cpu_vec_isa.py
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from aotbuild.build.host import Toolchain, default_prefix_maps, write_compiler_wrapper
from aotbuild.errors import BuildError, RecipeError

SIMD_BITS = {"x86-64-v2": 1, "x86-64-v3": 256, "x86-64-v4": 512}
"""`cpp.simdlen` per level: 1 is Inductor's word for no vectors (it knows none below AVX2)."""

FIXED_OPTIONS: dict[str, Any] = {
    # Weights stay outside, and none of their values is read into the code.
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,
    "joint_graph_constant_folding": False,
    # The build machine's thread count stays outside too.
    "cpp.dynamic_threads": True,
    # Precompiled headers lie outside the build's own folder and remember its paths.
    "aot_inductor.precompile_headers": False,
    "cpp_cache_precompile_headers": False,
}


def check_options(options: Mapping[str, object]) -> None:
    """Refuse Inductor options that this torch doesn't know, or that aotbuild itself must set.

    Raises:
        RecipeError: naming the option, and the nearest that exists.
    """
    import torch._inductor.config as config

    known: Mapping[str, object] = config._config
    for name in options:
        if name in FIXED_OPTIONS:
            raise RecipeError(f"inductor.{name}: aotbuild sets this option itself; leave it out.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise RecipeError(
                f"inductor.{name}: torch {torch.__version__} knows no such option{hint}"
            )


def options_for(arch: str, device: str, recipe_options: Mapping[str, object]) -> dict[str, Any]:
    """Every Inductor option of a build, as it counts in the key: no paths among them.

    Args:
        arch: the target's architecture, "x86-64-v3" or "sm_80".
        device: "cpu" or "cuda".
        recipe_options: those of the recipe's component.
    """
    import torch._inductor.config as config

    check_options(recipe_options)
    options = {**recipe_options, **FIXED_OPTIONS}
    if device == "cuda":
        from aotbuild.build.virtual_gpu import gpu_options, without_device
        from aotbuild.gpus import find_gpu

        options, _ = without_device(options)
        options.update(gpu_options(find_gpu(arch)))
    if (bits := SIMD_BITS.get(host_level(arch))) is not None:
        options["cpp.simdlen"] = bits
    return {name: value for name, value in options.items() if name in config._config}


def host_level(arch: str) -> str:
    """The x86-64 level that the host code is compiled for: a CPU target's own, v3 beside a GPU."""
    return "x86-64-v3" if arch.startswith("sm_") else arch


def compile_package(
    program: ExportedProgram,
    *,
    arch: str,
    options: Mapping[str, Any],
    toolchain: Toolchain,
    folder: Path,
) -> Path:
    """Compile `program` below `folder` and return AOTInductor's package.

    The process must have been started for this one build, with `TORCHINDUCTOR_CACHE_DIR` below
    `folder`; see `build.run.worker_environment`.

    Raises:
        BuildError: Inductor or the C++ compiler failed; its message is inside.
    """
    wrapper = write_compiler_wrapper(
        toolchain,
        folder / "bin",
        march=host_level(arch) if host_level(arch) in SIMD_BITS else None,
        prefix_maps=default_prefix_maps(Path(torch.__file__).parent, folder),
    )
    os.environ["CXX"] = str(wrapper)
    configs = {**options, "cpp.cxx": (str(wrapper),)}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_tensors_compared_by_identity())
            stack.enter_context(_vector_isa(host_level(arch)))
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=str(folder / "raw.pt2"), inductor_configs=configs
            )
    except Exception as e:
        raise BuildError(f"Inductor could not compile for {arch}: {type(e).__name__}: {e}") from e
    return Path(path)


@contextlib.contextmanager
def _tensors_compared_by_identity() -> Iterator[None]:
    import torch._inductor.graph as graph

    saved = graph.is_same_tensor
    graph.is_same_tensor = lambda a, b: a is b
    try:
        yield
    finally:
        graph.is_same_tensor = saved


@contextlib.contextmanager
def _vector_isa(level: str) -> Iterator[None]:
    """Let Inductor vectorise for `level`, whatever this machine has beyond it.

    Asked itself, Inductor compiles and runs a probe, and adds VNNI, BF16 or AMX where this CPU has
    them: code that another CPU of the same level couldn't run.
    """
    import torch._inductor.cpu_vec_isa as vec

    base = {"x86-64-v3": vec.VecAVX2, "x86-64-v4": vec.VecAVX512}.get(level)
    if base is None and level != "x86-64-v2":
        yield
        return
    found = [] if base is None else [type(base.__name__, (base,), _ALWAYS)()]
    saved = vec.valid_vec_isa_list
    vec.valid_vec_isa_list = lambda: found
    try:
        yield
    finally:
        vec.valid_vec_isa_list = saved


_ALWAYS: dict[str, Any] = {
    "__bool__": lambda self: True,  # noqa: ARG005
    "__hash__": lambda self: hash(str(self)),
}
