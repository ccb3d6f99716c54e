"""Modules that a pipeline takes for its own, and that record their calls. Runs no pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from aotbuild.build.blocks import BlockRecorder, block_classes
from aotbuild.build.calls import (
    RecordedCall,
    apply_casts,
    canonical,
    dtype_name,
    form,
    in_order,
    map_tensors,
    small_values,
    to_meta,
)
from aotbuild.build.ip_adapter import add_ip_adapters
from aotbuild.build.modules import adopt_attributes, build_module, convert_tensors, use_tiling
from aotbuild.cache.manifest import ModuleIdentity
from aotbuild.loaders.signature import Method, bind, method_of
from aotbuild.loaders.state import identify, module_state
from aotbuild.recipe import ComponentRecipe


class Recorder:
    """Two copies of one component: the stand-in that the pipeline holds, and its twin.

    The stand-in's parameters are on the meta device and its buffers are real, as pipelines read
    their values; the twin is all meta and runs the stock method to tell what comes back. Calls of
    one form are answered once and remembered.

    Attributes:
        module: the stand-in.
        calls: by unit, in the order in which they were first made.
        blocks: listens to the twin's repeated blocks; None where there are none, or where no
            `regional` recipe asked for their calls.
    """

    def __init__(
        self,
        component: str,
        config: dict[str, Any],
        precision: str,
        rules: Mapping[str, str],
        ip_adapters: tuple[int, ...] = (),
        tiling: bool = False,
        regional: ComponentRecipe | None = None,
    ) -> None:
        self._component, self._config = component, config
        self._precision, self._rules = precision, dict(rules)
        self._ip_adapters, self._tiling = ip_adapters, tiling
        self._twin = self._build()
        self.blocks: BlockRecorder | None = None
        if regional is not None:
            classes = block_classes(self._twin, regional, component)
            self.blocks = BlockRecorder(self._twin, classes, precision) if classes else None
        self._identity: ModuleIdentity = identify(self._twin)
        self._built = _dtypes(self._twin)
        self._twin_casts: dict[str, str] = {}
        adopt_attributes(self._twin)
        convert_tensors(self._twin, lambda t: t.detach().to("meta"))
        self._answers: dict[tuple[str, str], Any] = {}
        self.calls: dict[str, list[RecordedCall]] = {}
        self.module = self._make_stand_in()

    def _build(self) -> nn.Module:
        module = build_module(self._config, self._precision)
        add_ip_adapters(module, self._ip_adapters, self._precision)
        return use_tiling(module, self._tiling)

    def _make_stand_in(self) -> nn.Module:
        module = self._build()
        cls = type(module)
        body = {"device": property(lambda _: torch.device("cpu")), "to": _cast_only}
        module.__class__ = type(cls.__name__, (cls,), {**body, "__module__": cls.__module__})
        for unit, method in methods_of(cls).items():
            label = f"{self._component}.{unit}" if unit != "forward" else self._component
            setattr(module, method, self._record(label, method_of(cls, method)))
        return module

    def _record(self, unit: str, method: Method) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            call = bind(method, args, kwargs)
            if call is None:
                raise TypeError(f"{unit}: {method.name} can't be called like that")
            call = in_order(call, method.signature.parameters)
            draft = self._draft(unit, method.name, self._casts())
            key = (unit, form(call, draft.casts))
            if key not in self._answers:
                self._answers[key] = self._ask_twin(draft, call)
                self._keep(draft, call, self._answers[key])
            return _map_deep(lambda t: torch.zeros(t.shape, dtype=t.dtype), self._answers[key])

        return recorded

    def _draft(self, unit: str, method: str, casts: dict[str, str]) -> RecordedCall:
        """A call of which all is known but what it is called with."""
        return RecordedCall(
            unit=unit,
            component=self._component,
            method=method,
            call={},
            answer=None,
            config=self._config,
            identity=self._identity,
            state={},
            precision=self._precision,
            dtype=dtype_name(self.module.dtype),  # type: ignore[arg-type]
            casts=casts,
            rules={},
            values={},
            ip_adapters=self._ip_adapters,
            tiling=self._tiling,
        )

    def _ask_twin(self, draft: RecordedCall, call: dict[str, Any]) -> Any:
        undone = {n: dtype_name(self._built[n]) for n in self._twin_casts}
        apply_casts(self._twin, {**undone, **draft.casts})
        self._twin_casts = draft.casts
        _copy_switches(self.module, self._twin)
        with torch.no_grad(), self.blocks.listening(draft) if self.blocks else nullcontext():
            return getattr(self._twin, draft.method)(**_map_deep(to_meta, call))

    def _keep(self, draft: RecordedCall, call: dict[str, Any], answer: Any) -> None:
        forward = draft.method == "forward"
        ours = {n: r for n, r in self._rules.items() if forward or n in call}
        plain = canonical(map_tensors(to_meta, call), ours)
        seen = self.calls.setdefault(draft.unit, [])
        if any(c.form == form(plain, draft.casts) for c in seen):
            return
        seen.append(
            replace(
                draft,
                call=plain,
                answer=map_tensors(to_meta, answer),
                state=module_state(self._twin),
                rules=ours,
                values=small_values(call, plain),
            )
        )

    def _casts(self) -> dict[str, str]:
        now = _dtypes(self.module)
        return {n: dtype_name(d) for n, d in now.items() if d != self._built.get(n, d)}


def methods_of(cls: type[nn.Module]) -> dict[str, str]:
    """Unit word -> method to swap, of what a pipeline calls on a component of that class.

    A class with `encode` and `decode` is called by these. `encode` wraps its plain moments in a
    distribution, which no compiled code returns: where the class computes them in `_encode`, that
    is swapped and `encode` stays the Python around it.
    """
    if not hasattr(cls, "decode"):
        return {"forward": "forward"}
    found = {"decode": "decode"}
    if hasattr(cls, "encode"):
        found["encode"] = "_encode" if hasattr(cls, "_encode") else "encode"
    return found


def _dtypes(module: nn.Module) -> dict[str, torch.dtype]:
    named = (*module.named_parameters(), *module.named_buffers())
    return {n: t.dtype for n, t in named}


def _copy_switches(source: nn.Module, target: nn.Module) -> None:
    """Bring the plain attributes of `target` (tiling, slicing) to those of `source`."""
    for (_, ours), (_, theirs) in zip(source.named_modules(), target.named_modules(), strict=True):
        for name, value in vars(ours).items():
            if type(value) in (bool, int, float, str):
                setattr(theirs, name, value)


def _cast_only(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """`Module.to` without a move: the meta device holds nothing that could be moved."""
    dtype = kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), None)
    if dtype is not None:
        nn.Module.to(self, dtype=dtype)
    return self


def _map_deep(convert: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """`map_tensors` that also enters the output objects of diffusers."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if type(value) in (list, tuple):
        return type(value)(_map_deep(convert, v) for v in value)
    if isinstance(value, dict):
        items = {k: _map_deep(convert, v) for k, v in value.items()}
        return items if type(value) is dict else type(value)(**items)
    if type(value).__module__.startswith("diffusers.") and hasattr(value, "__dict__"):
        twin = copy.copy(value)
        vars(twin).update({k: _map_deep(convert, v) for k, v in vars(value).items()})
        return twin
    return value
