"""Compiled code, called through the C interface that every AOTInductor library exports.

Called by ctypes, which lets go of the GIL for the run (torch's own runners keep it). Checks neither
call nor weights: `dispatch` and `constants` must have done that, for the library itself does not.

Private names of torch stand here, in `placement` and `modes`. Tried on torch 2.13.0 and 2.14.1:
- the C interface: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/inductor/aoti_runtime/interface.h
- `torch._C._aoti`: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/inductor/aoti_runner/pybind.cpp
- a constant's data pointer is read when it is bound, and the container never frees the handle that
  it makes of a "user managed" constant; `Runner` frees it, having seen that it is still held:
  https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/inductor/aoti_runtime/utils.h
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aotbuild.errors import IntegrityError, LoadError
from aotbuild.loaders.locks import forking_lock
from aotbuild.loaders.placement import compare_function

_PREFIX = "AOTInductorModelContainer"
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# What the dynamic linker has mapped is a property of the process, hence this one table. A library's
# descriptor stays open for the life of the process: glibc knows a library by the name it was opened
# under, and another file opened later as the same /proc/self/fd/N would be taken for it.
_libraries: dict[str, tuple[ctypes.CDLL, int]] = {}
_lock = forking_lock()


class _Pair(ctypes.Structure):
    """`AOTInductorConstantMapEntry`."""

    _fields_ = (("name", ctypes.c_char_p), ("handle", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """A constant as the library declares it: its symbol, and its name in the module."""

    symbol: bytes
    name: str


def open_library(sha256: str, descriptor: int) -> ctypes.CDLL:
    """The library with that digest, mapped once a process; takes `descriptor` over.

    The caller has hashed the content through `descriptor`.

    Raises:
        IntegrityError: the dynamic linker refuses the file.
    """
    with _lock:
        if sha256 in _libraries:
            os.close(descriptor)
            return _libraries[sha256][0]
        try:
            library = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
            getattr(library, f"{_PREFIX}Run")
        except (OSError, AttributeError) as e:
            os.close(descriptor)
            raise IntegrityError(f"The dynamic linker refuses library {sha256[:12]}: {e}.") from e
        _libraries[sha256] = (library, descriptor)
        return library


class Runner:
    """One container of compiled code with its constants; several share one library's code.

    Runs may overlap, as many at once as `num_models`; `bind` and `close` must not overlap a run.

    Attributes:
        num_inputs, num_outputs: how many tensors it takes and gives.
        constants: what `bind` must give it.
        compare: the library's comparison of tensors with what was recorded; None without one.
    """

    def __init__(self, library: ctypes.CDLL, device: torch.device, num_models: int = 1) -> None:
        self._library = library
        self._device = device
        self._handle = ctypes.c_void_p()
        self._capsules: list[Any] = []
        self._pairs: ctypes.Array[_Pair] | None = None
        self._witness: Tensor | None = None
        self._call(
            "CreateWithDevice",
            ctypes.byref(self._handle),
            ctypes.c_size_t(num_models),
            str(device).encode(),
            None,
        )
        self.compare = compare_function(library)
        self._run_function = getattr(library, f"{_PREFIX}Run")
        self.num_inputs = self._count("GetNumInputs")
        self.num_outputs = self._count("GetNumOutputs")
        self.constants = tuple(self._constant(i) for i in range(self._count("GetNumConstants")))

    def bind(self, aliases: Mapping[str, Tensor]) -> None:
        """Make the code read `aliases`: one permanent tensor per constant, by module name.

        The first call takes a handle to each; later calls must pass the same tensors, whose `data`
        may have been assigned anew, and only tell the container to look again. The tensors must
        stay alive until `close`.
        """
        if self._pairs is None:
            tensors = [aliases[c.name] for c in self.constants]
            self._capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(tensors)
            pairs = [
                _Pair(c.symbol, _get_pointer(h, None))
                for c, h in zip(self.constants, self._capsules, strict=True)
            ]
            self._pairs = (_Pair * len(pairs))(*pairs)
            self._witness = tensors[0] if tensors else None
        former, uses = self._container_handles(), self._uses()
        self._call(
            "UpdateUserManagedConstantBufferPairs",
            self._handle,
            self._pairs,
            ctypes.c_size_t(len(self._pairs)),
            ctypes.c_bool(False),
            ctypes.c_bool(True),
        )
        if self._uses() > uses:
            _free(former)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for `inputs`, in the package's order; the GIL is free meanwhile.

        Raises:
            LoadError: the code failed, with its own message.
        """
        if len(inputs) != self.num_inputs:  # the library would end the process
            raise LoadError(f"The code takes {self.num_inputs} tensors; got {len(inputs)}.")
        handles = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(inputs)  # type: ignore[arg-type]
        taken = (ctypes.c_void_p * len(handles))(*[_get_pointer(h, None) for h in handles])
        given = (ctypes.c_void_p * self.num_outputs)()
        status = self._run_function(
            self._handle,
            taken,
            ctypes.c_size_t(len(handles)),
            given,
            ctypes.c_size_t(self.num_outputs),
            self._stream(),
            None,
        )
        if status:
            raise LoadError(f"The compiled code failed: {self._last_error()}")
        capsules = [_new_capsule(pointer, None, None) for pointer in given]
        return torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)

    def close(self) -> None:
        """Delete the container and give the handles back; a second time does nothing."""
        if not self._handle:
            return
        held, uses = self._container_handles(), self._uses()
        getattr(self._library, f"{_PREFIX}Delete")(self._handle)
        if self._uses() == uses:
            _free(held)
        capsules, self._capsules, self._pairs = self._capsules, [], None
        self._handle, self._witness = ctypes.c_void_p(), None
        if capsules:
            torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)

    def __del__(self) -> None:
        if hasattr(self, "_witness") and torch is not None:
            self.close()

    def _uses(self) -> int:
        """How many references there are to the first bound tensor."""
        return 0 if self._witness is None else self._witness._use_count()  # type: ignore[attr-defined]

    def _container_handles(self) -> list[int]:
        """The handles that the container made of what is bound now."""
        extract = getattr(self._library, f"{_PREFIX}ExtractConstantsMapEntries", None)
        if extract is None or self._witness is None:
            return []
        entries, count = ctypes.POINTER(_Pair)(), ctypes.c_size_t()
        inactive = ctypes.c_bool(False)
        if extract(self._handle, ctypes.byref(entries), ctypes.byref(count), inactive):
            return []
        return [h for i in range(count.value) if (h := entries[i].handle)]

    def _stream(self) -> ctypes.c_void_p | None:
        if self._device.type != "cuda":
            return None
        return ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)

    def _constant(self, index: int) -> ConstantInfo:
        name, fqn, at = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_size_t(index)
        self._call("GetConstantName", self._handle, at, ctypes.byref(name))
        self._call("GetConstantOriginalFQN", self._handle, at, ctypes.byref(fqn))
        return ConstantInfo(name.value or b"", (fqn.value or b"").decode())

    def _count(self, what: str) -> int:
        count = ctypes.c_size_t()
        self._call(what, self._handle, ctypes.byref(count))
        return count.value

    def _call(self, function: str, *arguments: Any) -> None:
        if getattr(self._library, _PREFIX + function)(*arguments):
            raise LoadError(f"The library refused {function}: {self._last_error()}")

    def _last_error(self) -> str:
        message = ctypes.c_char_p()
        try:
            self._library.AOTInductorGetLastError(ctypes.byref(message))
        except AttributeError:  # libraries built by torch before 2.12 only print it
            return "it gave no reason; see the process's standard error"
        return (message.value or b"no reason given").decode(errors="replace")


def _free(handles: list[int]) -> None:
    if handles:
        capsules = [_new_capsule(h, None, None) for h in handles]
        torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)
