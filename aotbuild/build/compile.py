"""Exported program in, AOTInductor's own package out; a process each. `package` repacks it.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from aotbuild.build.host import Toolchain, default_prefix_maps, write_compiler_wrapper
from aotbuild.build.symbol_floor import write_floor_header
from aotbuild.errors import AotbuildError, BuildError, RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """AOTInductor's package, and what compiling it showed, for the manifest's checks."""

    path: Path
    checks: dict[str, Any]


SIMD_BITS = {"x86-64-v2": 1, "x86-64-v3": 256, "x86-64-v4": 512}
"""`cpp.simdlen` per level: 1 is Inductor's word for no vectors (it knows none below AVX2)."""

_PLACEMENT = Path(__file__).with_name("placement.h")
"""What every library carries for the loader's look at the weights."""

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

    known = config.get_config_copy()
    for name in options:
        if name in FIXED_OPTIONS:
            raise RecipeError(f"inductor.{name}: aotbuild sets this option itself; leave it out.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise RecipeError(
                f"inductor.{name}: torch {torch.__version__} knows no such option{hint}"
            )


def options_for(
    arch: str, device: str, recipe_options: Mapping[str, object], *, tune: bool = False
) -> dict[str, Any]:
    """Every Inductor option of a build, as it counts in the key: no paths among them.

    Args:
        arch: the target's architecture, "x86-64-v3" or "sm_80".
        device: "cpu" or "cuda".
        recipe_options: those of the recipe's component.
        tune: the GPU is there, so those that measure on it stay.
    """
    import torch._inductor.config as config

    check_options(recipe_options)
    options = dict(recipe_options)
    if device == "cuda":
        from aotbuild.build.virtual_gpu import gpu_options, without_device
        from aotbuild.gpus import find_gpu

        own = gpu_options(find_gpu(arch))
        kept = {n: v for n, v in own.items() if n not in without_device(own)[1]}
        options = (
            {**kept, **options, "triton.autotune_at_compile_time": True}
            if tune
            else {
                **without_device(options)[0],
                **own,
            }
        )
    options |= FIXED_OPTIONS
    if (bits := SIMD_BITS.get(host_level(arch))) is not None:
        options["cpp.simdlen"] = bits
    known = config.get_config_copy()
    return {name: value for name, value in options.items() if name in known}


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
    tuning: Mapping[str, dict[str, int]] | None = None,
    tune: bool = False,
    attention: str = "sdpa",
) -> Compiled:
    """Compile `program` below `folder` into AOTInductor's package.

    The process must have been started for this one build, with `TORCHINDUCTOR_CACHE_DIR` below
    `folder`; see `build.run.worker_environment`.

    Args:
        tuning: measured choices by kernel digest, for a GPU that isn't asked.
        tune: the GPU is there: let Inductor measure, and keep its choices in the checks.
        attention: the recipe's backend, see `attention.lower_attention`.

    Raises:
        BuildError: Inductor or the C++ compiler failed; its message is inside.
    """
    wrapper = write_compiler_wrapper(
        toolchain,
        folder / "bin",
        march=host_level(arch) if host_level(arch) in SIMD_BITS else None,
        prefix_maps=default_prefix_maps(Path(torch.__file__).parent, folder),
        headers=[h for h in (write_floor_header(folder / "bin"), _PLACEMENT) if h is not None],
    )
    os.environ["CXX"] = str(wrapper)
    configs = {**options, "cpp.cxx": (str(wrapper),)}
    checks: dict[str, Any] = {}
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_vector_isa(host_level(arch)))
            if arch.startswith("sm_"):
                checks = _enter_gpu(stack, program, arch, tuning, tune, attention)
            else:
                checks = _spell_out(program, attention)
                stack.enter_context(_tensors_compared_by_identity())
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=str(folder / "raw.pt2"), inductor_configs=configs
            )
            if "stats" in checks:
                stats = checks.pop("stats")
                checks |= stats.to_json()
                if tune:
                    checks["choices"] = {k.digest: k.config for k in stats.kernels}
    except AotbuildError:
        raise
    except Exception as e:
        raise BuildError(f"Inductor could not compile for {arch}: {type(e).__name__}: {e}") from e
    return Compiled(path=Path(path), checks=checks)


def _enter_gpu(
    stack: contextlib.ExitStack,
    program: ExportedProgram,
    arch: str,
    tuning: Mapping[str, dict[str, int]] | None,
    tune: bool,
    attention: str,
) -> dict[str, Any]:
    from aotbuild.build.attention import lower_attention
    from aotbuild.build.tuning import recorded_choices
    from aotbuild.build.virtual_gpu import virtual_gpu
    from aotbuild.gpus import find_gpu

    gpu = find_gpu(arch)
    kinds = lower_attention(program, gpu, attention=attention)
    if tune:
        stack.enter_context(_tensors_compared_by_identity())
        stats = stack.enter_context(recorded_choices())
    else:
        stats = stack.enter_context(virtual_gpu(gpu, tuning=tuning))
    return {"attention": kinds, "stats": stats}


def _spell_out(program: ExportedProgram, attention: str) -> dict[str, Any]:
    """Plain arithmetic in the place of attention calls, where it is asked for on a CPU."""
    from aotbuild.build.attention import spell_out_attention
    from aotbuild.recipe.backends import PLAIN

    return {"attention": spell_out_attention(program)} if attention in PLAIN else {}


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    saved = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, saved)


def _tensors_compared_by_identity() -> contextlib.AbstractContextManager[None]:
    import torch._inductor.graph as graph

    return _replaced(graph, "is_same_tensor", lambda a, b: a is b)


def _vector_isa(level: str) -> contextlib.AbstractContextManager[None]:
    """Let Inductor vectorise for `level`, whatever this machine has beyond it.

    Asked itself, Inductor compiles and runs a probe, and adds VNNI, BF16 or AMX where this CPU has
    them: code that another CPU of the same level couldn't run.
    """
    import torch._inductor.cpu_vec_isa as vec

    base = {"x86-64-v3": vec.VecAVX2, "x86-64-v4": vec.VecAVX512}.get(level)
    if base is None and level != "x86-64-v2":
        return contextlib.nullcontext()
    found = [] if base is None else [type(base.__name__, (base,), _ALWAYS)()]
    return _replaced(vec, "valid_vec_isa_list", lambda: found)


_ALWAYS: dict[str, Any] = {
    "__bool__": lambda self: True,  # noqa: ARG005
    "__hash__": lambda self: hash(str(self)),
}
