"""torch.compile behind an artifact's guard, its caches filled from a bundle beforehand.

Runs what `dispatch` found covered, on weights that `constants` found as they were at the build; a
bundle's own form `cache.bundle` knows. Builds call the same code, so that the first call of a
service asks for just the entries that the build left.

Private names of torch stand here, tried on torch 2.11.0, 2.13.0 and 2.14.1:
- `torch._dynamo.utils.counters`: hits and misses of Inductor's cache of graphs and AOTAutograd's,
  https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/codecache.py
- `torch._inductor.runtime.cache_dir_utils`: where this process has its caches,
  https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/runtime/cache_dir_utils.py
- `torch._inductor.cpp_builder`: the command that names a compiled C++ file, paths among it,
  https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cpp_builder.py
- `torch.fx.experimental._config.use_duck_shape`: equal extents needn't stay equal.
- the keys of both caches are digests of pickles, and a `torch.memory_format` is pickled as
  "torch.contiguous_format" of whichever module imported torch first: in a service its own, so that
  no other process would ever hit. Here it is pickled as "contiguous_format" of torch,
  https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_tensor.py
"""

from __future__ import annotations

import copyreg
import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

from aotbuild.cache.backend import CompileSettings
from aotbuild.cache.leaves import grow
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.signature import Signature, flatten
from aotbuild.errors import CompileError
from aotbuild.loaders.placement import Compare

FIXED_OPTIONS: dict[str, Any] = {
    # Code for any number of threads, as AOT artifacts have it.
    "cpp.dynamic_threads": True,
    # A start would compile the headers again, though it has every library that needs them.
    "cpp_cache_precompile_headers": False,
    # A process that compiled ahead of time before has something left here, which is in the keys.
    "aot_inductor.metadata": {},
}

Compiled: TypeAlias = Callable[[nn.Module, Callable[..., Any], dict[str, Any]], Any]

# For good, as compiling may go on in several threads; such pickles are read anywhere.
copyreg.pickle(torch.memory_format, lambda found: str(found).removeprefix("torch."))

_shape_config: Any = importlib.import_module("torch.fx.experimental._config")

COUNTED = {
    "graph_hits": ("inductor", "fxgraph_cache_hit"),
    "graph_misses": ("inductor", "fxgraph_cache_miss"),
    "graph_bypasses": ("inductor", "fxgraph_cache_bypass"),
    "autograd_hits": ("aot_autograd", "autograd_cache_hit"),
    "autograd_misses": ("aot_autograd", "autograd_cache_miss"),
    "autograd_bypasses": ("aot_autograd", "autograd_cache_bypass"),
}
"""What `report` says -> where torch counts it."""


class JitCall:
    """A method under torch.compile, called with the tensors of a signature.

    It compiles at its first call, on this process's caches. Always without gradients, as nothing
    compiled ahead of time has them either, so that the entries are the same whoever calls.
    """

    def __init__(
        self, module: nn.Module, method: str, signature: Signature, function: Compiled
    ) -> None:
        self._module = module
        self._method = getattr(type(module), method)
        self._inputs = [s.path for s in signature.inputs]
        self._static = dict(signature.static)
        self._outputs = [s.path for s in signature.outputs]
        self._function = function
        self._worked = False

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """As `JitCode.run`."""
        call = grow({**self._static, **dict(zip(self._inputs, inputs, strict=True))})
        try:
            with torch.no_grad():
                answer: Any = dict(flatten(self._function(self._module, self._method, call)))
            outputs = [answer[path] for path in self._outputs]
        except Exception as e:
            if self._worked:
                raise
            raise CompileError(f"torch.compile failed: {type(e).__name__}: {e}") from e
        self._worked = True
        return outputs


class JitCode:
    """What a bundle's manifest is of, for one module, as `running.Code` wants it.

    Attributes:
        counts: by `COUNTED`, what its own calls added.
    """

    compare: Compare | None = None

    def __init__(self, module: nn.Module, manifest: Manifest, function: Compiled) -> None:
        signature = manifest.signature
        self.constants = manifest.constants
        self.num_inputs, self.num_outputs = len(signature.inputs), len(signature.outputs)
        self.counts = dict.fromkeys(COUNTED, 0)
        self._call = JitCall(module, manifest.method, signature, function)

    def bind(self, aliases: Mapping[str, Tensor]) -> None:
        """Nothing: torch.compile reads the module's own tensors."""

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for `inputs`, in the signature's order.

        Raises:
            CompileError: it couldn't be compiled, or failed the first time.
        """
        before = _counted()
        answer = self._call(inputs)
        for name, count in _counted().items():
            self.counts[name] += count - before[name]
        return answer

    def close(self) -> None:
        """Nothing: what torch compiled it keeps as long as the function lives."""


def cache_roots(device: torch.device) -> dict[str, Path]:
    """Where this process has its caches, by the bundle's names for them."""
    return {"inductor": Path(cache_dir()), "triton": Path(triton_cache_dir(device.index or 0))}


def compile_command() -> str:
    """Hex digest of the command that compiles C++ here: programs, flags, and paths.

    Inductor names its compiled C++ files by it, so that under another they aren't found.

    Raises:
        CompileError: there is no compiler, which torch asks for even where all is cached.
    """
    try:
        options = CppTorchDeviceOptions(device_type="cpu", include_pytorch=False, shared=True)
        command = CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()
    except Exception as e:
        raise CompileError(
            f"torch finds no C++ compiler here ({type(e).__name__}), which torch.compile asks for "
            "even where everything is cached."
        ) from e
    return hashlib.sha256(command.encode()).hexdigest()


def compiled(settings: CompileSettings, *, fullgraph: bool) -> Compiled:
    """(module, method, arguments) -> answer, compiled once for all modules that are alike."""
    how: dict[str, Any] = {"dynamic": settings.dynamic, "options": settings.options or None}
    function: Compiled = torch.compile(_own_call(), fullgraph=fullgraph, **how)
    if not settings.dynamic:
        return function

    def unduck(*arguments: Any) -> Any:
        with _shape_config.patch(use_duck_shape=False):
            return function(*arguments)

    return unduck


def keep_extents_apart() -> None:
    """For the rest of this process, torch.compile takes no extents for one because they are equal.

    torch 2.13 finds no code for SDXL's UNet otherwise: its sizes become differences of each other.
    """
    _shape_config.use_duck_shape = False


def _call(module: nn.Module, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return function(module, **arguments)


def _own_call() -> Callable[..., Any]:
    """`_call` with a code object of its own: torch counts recompilations by those."""
    code: CodeType = _call.__code__.replace(co_name="aotbuild_call")
    return FunctionType(code, globals(), "aotbuild_call")


def _counted() -> dict[str, int]:
    return {name: counters[kind][entry] for name, (kind, entry) in COUNTED.items()}
