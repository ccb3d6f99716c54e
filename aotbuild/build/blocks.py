"""The calls that a component's repeated blocks get while its twin runs, alike ones counted once."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from aotbuild.build.calls import (
    Block,
    RecordedCall,
    describe,
    dtype_name,
    in_order,
    map_tensors,
    to_meta,
)
from aotbuild.cache.signature import flatten
from aotbuild.canonical import digest
from aotbuild.errors import RecipeError
from aotbuild.loaders.blocks import Sources, find_blocks, identify_block
from aotbuild.loaders.signature import Method, bind, method_of
from aotbuild.loaders.state import module_state
from aotbuild.recipe import ComponentRecipe


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a block was before the call."""

    block: nn.Module
    method: Method
    dtypes: dict[str, str]
    state: dict[str, Any]


class BlockRecorder:
    """Listens to the blocks of one twin, whose tensors are still what its constructor made.

    Blocks are alike where class, source, shapes and dtypes of their weights, state and call are;
    how a call's tensors lie doesn't count, since the loader lays them out as the code reads them.

    Attributes:
        calls: one for each kind of block and each call of it, with the paths of all that are alike;
            in the order in which they were first made.
    """

    def __init__(self, twin: nn.Module, classes: tuple[str, ...], precision: str) -> None:
        sources: Sources = {}
        self._blocks = find_blocks(twin, classes)
        self._precision = precision
        self._identities = {p: identify_block(b, sources) for p, b in self._blocks.items()}
        self._calls: dict[str, RecordedCall] = {}

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """One for each kind of block and call, in the order in which they were first made."""
        return tuple(self._calls.values())

    @contextmanager
    def listening(self, like: RecordedCall) -> Iterator[None]:
        """Keep the calls that the blocks get meanwhile.

        Args:
            like: the component's own call, whose fields hold for its blocks' too.
        """
        heard = {path: self._before(block) for path, block in self._blocks.items()}
        for path, one in heard.items():
            vars(one.block)["forward"] = self._listener(path, one, like)
        try:
            yield
        finally:
            for one in heard.values():
                del vars(one.block)["forward"]

    def _before(self, block: nn.Module) -> _Heard:
        named = (*block.named_parameters(), *block.named_buffers())
        dtypes = {n: d for n, t in named if (d := dtype_name(t.dtype)) != self._precision}
        return _Heard(block, method_of(type(block), "forward"), dtypes, module_state(block))

    def _listener(self, path: str, heard: _Heard, like: RecordedCall) -> Callable[..., Any]:
        stock = type(heard.block).forward.__get__(heard.block)

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = bind(heard.method, args, kwargs)
            if call is None:
                raise TypeError(f"{path}: {type(heard.block).__name__} can't be called like that")
            call = map_tensors(to_meta, in_order(call, heard.method.signature.parameters))
            answer = stock(*args, **kwargs)
            self._keep(path, heard, call, answer, like)
            return answer

        return forward

    def _keep(
        self, path: str, heard: _Heard, call: dict[str, Any], answer: Any, like: RecordedCall
    ) -> None:
        identity = self._identities[path]
        key = digest([identity.to_json(), heard.state, heard.dtypes, _form(call)])
        known = self._calls.get(key)
        if known is not None and known.block is not None:
            paths = tuple(dict.fromkeys((*known.block.paths, path)))
            self._calls[key] = replace(
                known, call=_agreed(known.call, call), block=replace(known.block, paths=paths)
            )
            return
        self._calls[key] = replace(
            like,
            unit=f"{like.component}.{identity.class_name}",
            method="forward",
            call=call,
            answer=map_tensors(to_meta, answer),
            identity=identity,
            state=heard.state,
            rules={},
            values={},
            block=Block(paths=(path,), dtypes=heard.dtypes),
        )


def _form(call: dict[str, Any]) -> list[Any]:
    """What tells a call from another, as JSON."""
    leaves = ((path, value, describe(value)) for path, value in flatten(call))
    return [[p, d[:2] if isinstance(v, torch.Tensor) else d] for p, v, d in leaves]


def _agreed(ours: Any, theirs: Any) -> Any:
    """The call `ours`; where a tensor of `theirs` lies otherwise, a contiguous one."""
    if isinstance(ours, torch.Tensor):
        return (
            ours
            if ours.stride() == theirs.stride()
            else torch.empty_like(ours, memory_format=torch.contiguous_format)
        )
    if type(ours) is dict:
        return {name: _agreed(value, theirs[name]) for name, value in ours.items()}
    if type(ours) in (list, tuple):
        return type(ours)(_agreed(a, b) for a, b in zip(ours, theirs, strict=True))
    return ours


def block_classes(module: nn.Module, component: ComponentRecipe, name: str) -> tuple[str, ...]:
    """Of which classes the blocks of `module`, the component `name`, are; none where it has none.

    Raises:
        RecipeError: the recipe names a class that no part of the module has.
    """
    counts = Counter(type(child).__name__ for child in module.modules())
    for wanted in component.blocks:
        if wanted not in counts:
            near = difflib.get_close_matches(wanted, counts, n=1)
            raise RecipeError(
                f"components.{name}.blocks names {wanted}, and no part of a "
                f"{type(module).__name__} is one; "
                + (f"did you mean {near[0]}?" if near else f"there are {_repeated(counts)}.")
            )
    default = getattr(type(module), "_repeated_blocks", None) or ()
    return component.blocks or tuple(c for c in default if c in counts)


def _repeated(counts: Counter[str]) -> str:
    return ", ".join(n for n, times in counts.most_common() if times > 1) or "none that repeat"
