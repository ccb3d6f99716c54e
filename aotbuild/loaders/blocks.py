"""A component's repeated blocks: where they stand, and which module each of them is.

Which artifacts serve them is `regional`'s to find out.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild.cache.manifest import ModuleIdentity
from aotbuild.canonical import digest
from aotbuild.loaders.state import identify

_PLAIN = (type(None), bool, int, float, str)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_DEPTH = 4
Sources = dict[frozenset[str], str]


def find_blocks(module: nn.Module, classes: Collection[str]) -> dict[str, nn.Module]:
    """Path -> block: the modules whose class has one of these names, those inside others left out.

    A block that stands at several paths is there once. `module` itself counts, at "".
    """
    found: dict[str, nn.Module] = {}
    last: str | None = None
    for path, child in module.named_modules():
        inside = last is not None and (not last or path.startswith(f"{last}."))
        if not inside and type(child).__name__ in classes:
            found[path] = child
            last = path
    return found


def identify_block(block: nn.Module, sources: Sources | None = None) -> ModuleIdentity:
    """Class, architecture and source of a block, which has no config to tell its architecture.

    Its `config` has the shapes of its parameters and buffers as `weights`, its own config where it
    has one, and as `values` the attributes that `module_state` doesn't show: functions, tables.

    Args:
        sources: what was found for other blocks, to be filled; a digest is made once for those of
            the same classes.
    """
    own = identify(block, sources)
    named = (*block.named_parameters(), *block.named_buffers())
    config: dict[str, Any] = {"weights": {name: list(tensor.shape) for name, tensor in named}}
    config |= {"config": own.config} if own.config else {}
    config |= {"values": values} if (values := _values(block)) else {}
    return ModuleIdentity(
        class_name=own.class_name,
        config=config,
        config_sha256=digest(config),
        source_sha256=own.source_sha256,
    )


def _values(block: nn.Module) -> dict[str, Any]:
    """By path, the attributes that are neither plain nor tensors nor modules."""
    found = {}
    for path, module in block.named_modules():
        for name, value in vars(module).items():
            if name[0] == "_" or name == "processor" or hasattr(value, "__aotbuild_swapped__"):
                continue
            told = isinstance(value, (*_PLAIN, Tensor, nn.Module, torch.dtype))
            if not told and not _is_flat(value):
                found[f"{path}.{name}" if path else name] = _told(value, _DEPTH)
    return found


def _is_flat(value: object) -> bool:
    """Whether `module_state` shows it: a list or tuple of plain values."""
    plain = (*_PLAIN, torch.dtype)
    return type(value) in (list, tuple) and all(
        type(v) in plain or isinstance(v, torch.dtype) or _is_flat(v)
        for v in value  # type: ignore[attr-defined]
    )


def _told(value: Any, depth: int) -> Any:
    """`value` as JSON that is the same in every process."""
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, functools.partial):
        parts = [value.func, list(value.args), dict(value.keywords)]
        return ["partial", *(_told(p, depth) for p in parts)]
    if isinstance(value, (*_FUNCTIONS, type)):
        return _function(value, depth)
    if depth and isinstance(value, dict):
        return {str(k): _told(v, depth - 1) for k, v in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        items = [_told(v, depth - 1) for v in value]
        return sorted(items, key=digest) if isinstance(value, (set, frozenset)) else items
    return _object(value, depth)


def _function(value: Any, depth: int) -> Any:
    """A function or class by name; one that was made in place also by where, and of what."""
    name = f"{value.__module__}.{value.__qualname__}"
    code = getattr(value, "__code__", None)
    if code is None or "<" not in name:
        return name
    cells = [c.cell_contents for c in value.__closure__ or ()] if depth else []
    return [name, code.co_firstlineno, *(_told(c, depth - 1) for c in cells)]


def _object(value: Any, depth: int) -> Any:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, (Tensor, nn.Module)) or not depth:
        return name
    table = {k: v for k, v in getattr(value, "__dict__", {}).items() if k[0] != "_"}
    return [name, {k: _told(v, depth - 1) for k, v in sorted(table.items())}]
