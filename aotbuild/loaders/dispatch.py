"""A component's method, swapped: each call goes to an artifact that covers it, else to eager.

Which artifacts there are is decided by `load`; here it is decided, at every call, whether one may
serve: the call's form, the module's state, where its tensors are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from aotbuild.errors import CompileError, LoadError, SignatureMismatch
from aotbuild.loaders import advice
from aotbuild.loaders.arguments import BRING, first_tensor, refusal
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.component import Component
from aotbuild.loaders.coverage import differences, requires_grad
from aotbuild.loaders.locks import forking_lock
from aotbuild.loaders.modes import special_mode
from aotbuild.loaders.selfcheck import disagreement
from aotbuild.loaders.signature import Call, bind, call_key, method_of
from aotbuild.loaders.tally import Miss, Tally

_log = logging.getLogger(__name__)
_REMEMBERED = 256
"""Kinds of calls whose look-up is kept; past that the table starts anew."""

_ATTEMPTS = 3


class Dispatcher:
    """Stands as an instance attribute where the method of the class was."""

    __aotbuild_swapped__ = True

    def __init__(
        self,
        component: Component,
        unit: str,
        method: str,
        artifacts: list[Artifact],
        strict: bool,
        tally: Tally | None = None,
    ) -> None:
        cls = self._class = type(component.module)
        self.unit = unit
        self.artifacts = tuple(artifacts)
        self.tally = tally or Tally()
        self.released = False
        self.__name__ = self._name = method
        self.__doc__ = getattr(cls, method).__doc__
        self._component = component
        self._eager: Callable[..., Any] = getattr(cls, method).__get__(component.module, cls)
        self._method = method_of(cls, method)
        self.__signature__ = self._method.signature
        self._strict = strict
        # Where two have another rule for one argument, the first's holds, and it alone covers.
        self._ruled = {p: rule for a in reversed(artifacts) for p, rule in a.ruled.items()}
        self._bring = tuple((p, BRING[rule]) for p, rule in self._ruled.items())
        self._known: dict[Any, tuple[Artifact, ...] | Miss] = {}
        self._lock = forking_lock()

    @property
    def __code__(self) -> Any:
        """Of eager's method: `torch.export` reads its argument names there."""
        return self._eager.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What eager returns for this call, by compiled code where an artifact covers it.

        Raises:
            SignatureMismatch: nothing covers it, and the user asked for an error.
            ReleasedError: only eager can answer (when traced), and its weights are gone.
        """
        if self.released or self._component.lost or torch.compiler.is_compiling():
            return self._run_eagerly(args, kwargs)
        call = bind(self._method, args, kwargs)
        if call is None:  # eager's own TypeError says best what is wrong
            return self._run_eagerly(args, kwargs)
        miss = self._mode(call) or self._canonical(call)
        if miss is None:
            covering = self._lookup(call)
            if isinstance(covering, tuple):
                answer = self._serve(covering, call, args, kwargs)
                if not isinstance(answer, Miss):
                    return answer
                covering = answer
            miss = covering
        self._record(miss, call)
        return self._run_eagerly(args, kwargs)

    def _run_eagerly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Eager's answer, or its TypeError.

        Raises:
            ReleasedError: eager lacks weights.
        """
        if self._component.cannot_run():
            self._method.signature.bind(*args, **kwargs)
            raise self._component.refusal(f"{self.unit} would have to run eagerly")
        module = self._component.module
        if type(module) is not self._class:  # somebody patched it, and their method counts
            return getattr(type(module), self._name).__get__(module)(*args, **kwargs)
        return self._eager(*args, **kwargs)

    def _mode(self, call: Call) -> Miss | None:
        """What in the thread's mode, or in the arguments, compiled code can't honour."""
        kind = self.artifacts[0].device.type
        if torch.is_autocast_enabled(kind):
            return Miss("autocast", f"autocast is on for {kind}; an artifact has its own dtypes")
        if special := special_mode():
            return Miss("mode", f"{special}, which compiled code takes no part in")
        if torch.is_grad_enabled() and requires_grad(call):
            return Miss("gradients", "an input requires grad, and compiled code has no backward")
        return None

    def _canonical(self, call: Call) -> Miss | None:
        """Bring the ruled arguments of `call` to their one form, in place."""
        first = first_tensor(call, self._ruled) if self._ruled else None
        for path, bring in self._bring:
            value = call.get(path)
            made = None if first is None else bring(value, first)
            if made is None:
                return Miss("call", refusal(self._ruled[path], path, value, first))
            call[path] = made
        return None

    def _lookup(self, call: Call) -> tuple[Artifact, ...] | Miss:
        try:
            key = call_key(self._method, call)
            known = self._known.get(key)
        except TypeError as e:
            return Miss("call", f"an argument is {e}, which no artifact takes")
        if known is None:
            known = self._search(call)
            with self._lock:
                if len(self._known) >= _REMEMBERED:
                    self._known = {}
                self._known[key] = known
        return known

    def _search(self, call: Call) -> tuple[Artifact, ...] | Miss:
        try:
            found = [(differences(a.manifest.signature, call, a.device), a) for a in self.artifacts]
        except ValueError as e:
            return Miss("call", str(e))
        covering = tuple(a for reasons, a in found if not reasons)
        if covering:
            return covering
        reasons, nearest = min(found, key=lambda pair: len(pair[0]))
        about = f"nearest artifact: {nearest.key}{advice.range_of(nearest.manifest)}"
        return Miss("call", f"{'; '.join(reasons[:4])} ({about})")

    def _serve(
        self, covering: tuple[Artifact, ...], call: Call, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """The answer of the first of `covering` that may serve, or the reason why none may."""
        seen = self._component.observe()
        miss: Miss | None = None
        for artifact in covering:
            reason = artifact.disabled or artifact.state_reason(seen)
            if reason is not None:
                miss = miss or Miss("disabled" if artifact.disabled else "state", reason)
                continue
            answer = self._run(artifact, call)
            if isinstance(answer, Miss):
                miss = miss or answer
            elif artifact.checked:
                return answer
            else:
                return self._compare(artifact, answer, args, kwargs)
        return miss or Miss("call", "no artifact covers it")

    def _run(self, artifact: Artifact, call: Call) -> Any:
        """Run `artifact` on weights that are where it thinks they are, bound anew if need be."""
        gate, binding = self._component.gate, artifact.binding
        for _ in range(_ATTEMPTS):
            gate.enter()
            try:
                if self.released:
                    return Miss("released", "the pipeline was restored meanwhile")
                if binding.current():
                    if binding.unfit is not None:
                        return Miss("weights", f"the weights don't fit: {binding.unfit}")
                    inputs = artifact.inputs(call)
                    if inputs is None:
                        return Miss("call", "an input has no memory of its own")
                    try:
                        answer = artifact.run(inputs)
                    except CompileError as e:
                        artifact.disabled = str(e)
                        return Miss("disabled", artifact.disabled)
                    self._hit(artifact)
                    return answer
            finally:
                gate.leave()
            with gate.alone():
                if not self.released and not binding.current() and binding.refit() is not None:
                    return Miss("weights", f"the weights don't fit: {binding.unfit}")
        return Miss("weights", "the weights change from one moment to the next")

    def _compare(self, artifact: Artifact, answer: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Eager's answer, after the artifact's first one was held against it."""
        with self._component.freeing.comparing() as possible:
            if not possible:  # another thread's comparison ended meanwhile, and settled it
                return Miss("disabled", artifact.disabled) if artifact.disabled else answer
            eager = self._eager(*args, **kwargs)
            verdict = disagreement(answer, eager, quantized=artifact.quantized)
            if verdict:
                artifact.disabled = f"its first call disagreed with eager: {verdict}"
                self._record(Miss("disabled", artifact.disabled), None)
            elif verdict is not None:  # None: eager isn't finite, so nothing was learnt
                artifact.checked = True
        return eager

    def _hit(self, artifact: Artifact) -> None:
        with self._lock:
            artifact.hits += 1

    def _record(self, miss: Miss, call: Call | None) -> None:
        """Count the fallback; say so the first time, or raise where the user asked for that."""
        first = self.tally.count(miss)
        help_ = ""
        if miss.reason.startswith("return_dict is True"):
            help_ = " Pass return_dict=False, as pipelines do."
        elif miss.kind == "call" and (first or self._strict):
            help_ = f" {advice.advise([a.manifest for a in self.artifacts], call or {})}"
        if self._strict:
            raise SignatureMismatch(f"{self.unit}: {miss.reason}.{help_}")
        if first:
            _log.warning("%s runs eagerly: %s.%s", self.unit, miss.reason, help_)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """On a copy of the component: the copy's own method, never this one's weights."""
        module = self._component.module
        if self._component.freeing.freed:
            raise self._component.freeing.refusal(f"A copy of {self._component.name}")
        copied = memo.get(id(module))
        if copied is None:
            raise LoadError("A swapped method can't be copied apart from its component.")
        return getattr(type(copied), self._name).__get__(copied, type(copied))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise LoadError(
            f"{self.unit} is swapped, and compiled code can't be pickled. Call restore() first, or "
            "save its state_dict()."
        )
