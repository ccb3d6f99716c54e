"""One artifact at run time: its code, its binding, the form of its calls and answers.

Whether it may serve a call is `dispatch`'s to decide.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aotbuild.cache.backend import AOT
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import IntegrityError
from aotbuild.loaders.arguments import BRING
from aotbuild.loaders.component import Component, state_reason
from aotbuild.loaders.constants import Binding
from aotbuild.loaders.outputs import Output, output_class
from aotbuild.loaders.packed import PackedBinding
from aotbuild.loaders.rules import INT8_ROWS
from aotbuild.loaders.running import Code
from aotbuild.loaders.signature import Call

_INPUT_ALIGNMENT_BYTES = 16


class Artifact:
    """What `dispatch` runs: one container, bound to one component.

    Attributes:
        manifest: the artifact's.
        binding: its constants.
        verified: whether a record says that it passed on this architecture.
        checked: whether it may serve without comparing with eager first.
        disabled: why it doesn't serve any more.
        ruled: by path, the rule of each argument that is brought to one form.
        load_s, weights_s, bind_s: seconds of opening its code, of hashing and mapping its packed
            constants, of binding.
        packed_bytes: what it binds of packed constants; artifacts with equal files share them.
    """

    def __init__(
        self,
        manifest: Manifest,
        component: Component,
        runner: Code,
        device: torch.device,
        *,
        verified: bool,
        self_check: bool,
        packed: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.manifest = manifest
        self.device = device
        self.verified = verified
        self.checked = verified or not self_check
        self.disabled: str | None = None
        self.hits = 0
        self.load_s = 0.0
        self.weights_s = 0.0
        self.bind_s = 0.0
        self._component = component
        self._runner = runner
        self._state: tuple[int, str | None] = (-1, None)
        self._on_backend = "backend" in manifest.state
        signature = manifest.signature
        self.ruled = {s.path: s.rule for s in signature.inputs if s.rule is not None}
        self._inputs = [(_steps(s.path), s.stride) for s in signature.inputs]
        self._returns = dict(signature.returns)
        self._outputs = {s.path: i for i, s in enumerate(signature.outputs)}
        self._classes = {
            path: output_class(marker["object"][0])
            for path, marker in self._returns.items()
            if isinstance(marker, dict) and "object" in marker
        }
        self._check_form()
        bound = manifest.constants, component.weights, runner, device, manifest.precision
        self.binding = Binding(*bound) if packed is None else PackedBinding(packed, *bound)
        self.packed_bytes = sum(t.nbytes for t in (packed or {}).values())

    @property
    def key(self) -> str:
        """The first 12 digits of its key."""
        return self.manifest.key[:12]

    @property
    def quantized(self) -> bool:
        """Whether it computes with int8 weights."""
        return any(c.rule == INT8_ROWS for c in self.manifest.constants)

    @property
    def jit_counts(self) -> dict[str, int] | None:
        """Of a bundle, what its compiling found in the caches, see `jit`; None of others."""
        return None if self.manifest.backend == AOT else dict(getattr(self._runner, "counts", {}))

    def bind(self) -> str | None:
        """Bind it, timed; None, or why eager's tensors don't fit."""
        started = time.perf_counter()
        try:
            return self.binding.refit()
        finally:
            self.bind_s += time.perf_counter() - started

    def state_reason(self, seen: int) -> str | None:
        """Why the component's state, known by the number `seen`, isn't the one it was built for."""
        number, reason = self._state
        if number != seen or self._on_backend:
            reason = state_reason(self.manifest.state, self._component.state)
            self._state = (seen, reason)
        return reason

    def inputs(self, call: Call) -> list[Tensor] | None:
        """The call's tensors in the package's order, laid out as the code reads them.

        None where one of them has no memory of its own.
        """
        ready: list[Tensor] = []
        for steps, stride in self._inputs:
            tensor: Any = call
            for step in steps:
                tensor = tensor[step]
            tensor = _laid_out(tensor, stride)
            pointer = tensor.data_ptr()
            if pointer % _INPUT_ALIGNMENT_BYTES:
                tensor = tensor.detach().clone()
            elif not pointer and tensor.numel():
                return None
            ready.append(tensor)
        return ready

    def run(self, inputs: list[Tensor]) -> Any:
        """The answer to a call whose tensors are `inputs`, in the form eager gives it.

        Raises:
            LoadError: the compiled code failed.
        """
        return self._answer("", self._runner.run(inputs))

    def _answer(self, path: str, outputs: list[Tensor]) -> Any:
        index = self._outputs.get(path)
        if index is not None:
            return outputs[index]
        marker = self._returns[path]
        if not isinstance(marker, dict):
            return marker
        ((kind, length),) = marker.items()
        prefix = f"{path}." if path else ""
        if kind == "object":
            fields = {name: self._answer(f"{prefix}{name}", outputs) for name in length[1:]}
            return (self._classes[path] or Output)(**fields)
        items = [self._answer(f"{prefix}{i}", outputs) for i in range(length)]
        return tuple(items) if kind == "tuple" else items

    def _check_form(self) -> None:
        """Refuse what can't be served in the form eager has.

        Raises:
            IntegrityError: saying what the manifest asks for.
        """
        signature = self.manifest.signature
        odd = [p for p, rule in self.ruled.items() if "." in p or rule not in BRING]
        if odd:
            raise IntegrityError(f"Its signature has a rule for {odd[0]} that isn't known here.")
        if any(isinstance(m, dict) and "dict" in m for m in self._returns.values()):
            raise IntegrityError("It answers with a mapping, whose class no manifest records.")
        unknown = [p for p, c in self._classes.items() if c is None]
        if unknown and not self._component.weightless:
            name = self._returns[unknown[0]]["object"][0]  # type: ignore[index]
            raise IntegrityError(f"It answers with {name}, which is no output class loaded here.")
        found = (self._runner.num_inputs, self._runner.num_outputs)
        if found != (len(signature.inputs), len(signature.outputs)):
            raise IntegrityError(
                f"Its code takes {found[0]} tensors and gives {found[1]}; its manifest says "
                f"{len(signature.inputs)} and {len(signature.outputs)}."
            )


def _steps(path: str) -> tuple[str | int, ...]:
    return tuple(int(s) if s.isdigit() else s for s in path.split("."))


def _laid_out(tensor: Tensor, stride: tuple[int, ...] | None) -> Tensor:
    """`tensor` with strides `stride`, or contiguous for None; itself where it is so already."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if stride is None:
        return tensor.contiguous()
    found = tensor.stride()
    if found == stride or not any(
        n > 1 and a != b for n, a, b in zip(tensor.shape, found, stride, strict=True)
    ):
        return tensor
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor.detach())
