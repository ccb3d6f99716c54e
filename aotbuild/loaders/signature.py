"""A call brought to one form, and described. Whether an artifact covers it `coverage` says."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Call: TypeAlias = dict[str, Any]
READ = "__aotbuild_read__"
ABSENT = object()
"""Stands for an argument without a default until the call gives it."""

_PLAIN = (bool, int, float, str, type(None))
_TENSORS = (Tensor, nn.Parameter)
_GENERATOR = torch.Generator
_strided = torch.strided


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The parameters of a method as calls are bound to them.

    Attributes:
        name: the method's.
        positional: names that may be given by position, in order.
        defaults: every parameter's declared default; those without one are absent.
        names: every parameter.
        empty: every parameter in its order, as its default or as `ABSENT`.
        open_keywords: whether it takes further keywords.
        function: the method itself, without its decorators.
        signature: of the bound method.
    """

    name: str
    positional: tuple[str, ...]
    defaults: Mapping[str, Any]
    names: frozenset[str]
    empty: Call
    open_keywords: bool
    function: Callable[..., Any]
    signature: inspect.Signature


def method_of(cls: type, name: str) -> Method:
    """How calls of `cls.name` are bound; decorators that say what they wrap are seen through."""
    function = inspect.unwrap(getattr(cls, name))
    declared = inspect.signature(function)
    parameters = list(declared.parameters.values())[1:]
    kinds = inspect.Parameter
    by_position = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    own = [p for p in parameters if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    return Method(
        name=name,
        positional=tuple(p.name for p in own if p.kind in by_position),
        defaults={p.name: p.default for p in own if p.default is not kinds.empty},
        names=frozenset(p.name for p in own),
        empty={p.name: ABSENT if p.default is kinds.empty else p.default for p in own},
        open_keywords=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
        function=function,
        signature=declared.replace(parameters=parameters),
    )


def bind(method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """The call as parameter name -> value, or None where it doesn't fit the parameters.

    Absent arguments stand as their declared defaults. A random generator for a parameter that the
    method never reads (AutoencoderKL's `decode`) counts as absent.
    """
    if len(args) > len(method.positional):
        return None
    call = dict(method.empty)
    given = dict(zip(method.positional, args, strict=False))
    if given.keys() & kwargs.keys():
        return None
    call.update(given)
    call.update(kwargs)
    if len(call) > len(method.names) and not method.open_keywords:
        return None
    for name, value in call.items():
        if value is ABSENT:
            return None
        if type(value) is _GENERATOR and not reads(method.function, name):
            call[name] = method.defaults.get(name)
    return call


def normalise(
    module: nn.Module, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Call:
    """`bind` for a recorder, which sees only calls that the method accepts.

    Raises:
        TypeError: the call doesn't fit the method's parameters.
    """
    call = bind(method_of(type(module), name), args, kwargs)
    if call is None:
        raise TypeError(f"{type(module).__name__}.{name} can't be called like that")
    return call


def call_key(method: Method, call: Call) -> Any:
    """`fingerprint` of a call of `bind`, whose arguments are in the method's order.

    Raises:
        TypeError: as `fingerprint`.
    """
    leaves = [
        None
        if value is None
        else (value.shape, value.dtype, value.device)
        if (kind := type(value)) is Tensor and value.layout is _strided
        else (kind, value)
        if kind in _PLAIN
        else fingerprint(value)
        for value in call.values()
    ]
    if len(call) > len(method.names):
        leaves.append(tuple(call)[len(method.names) :])
    return tuple(leaves)


def fingerprint(value: Any) -> Any:
    """A hashable description of a call: structure, shapes, dtypes, devices, plain values by type.

    Raises:
        TypeError: a leaf that is neither a strided tensor nor plain.
    """
    kind = type(value)
    if kind in _TENSORS:
        if value.layout is not _strided:
            raise TypeError(f"a {value.layout} tensor")
        return value.shape, value.dtype, value.device
    if kind in _PLAIN:
        return kind, value
    if kind is dict:
        return dict, tuple([(k, fingerprint(value[k])) for k in sorted(value)])
    if kind in (list, tuple):
        return kind, tuple(map(fingerprint, value))
    raise TypeError(f"a {kind.__name__}")


@functools.cache
def reads(function: Callable[..., Any], name: str) -> bool:
    """Whether the function's own code can see the value of its parameter `name`.

    Read off the bytecode: a parameter whose name occurs in no load, no closure, and no `locals()`.
    A stand-in's function says it by the attribute `READ`.
    """
    known = getattr(function, READ, None)
    if known is not None:
        return name in known
    code = getattr(function, "__code__", None)
    if code is None or name in code.co_cellvars or {"locals", "eval", "exec"} & {*code.co_names}:
        return True
    return any(
        i.argval == name or (isinstance(i.argval, tuple) and name in i.argval)
        for i in dis.get_instructions(code)
        if i.opname.startswith("LOAD_")
    )
