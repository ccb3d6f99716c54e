"""The constant plan: where each tensor that a graph reads comes from in the stock module."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aotbuild.build.calls import dtype_name
from aotbuild.build.fuse import FUSED
from aotbuild.build.quantize import PARAMETRIZED
from aotbuild.cache.manifest import Constant
from aotbuild.errors import BuildError
from aotbuild.loaders.rules import CONCAT, INT8_ROWS, REAL, STORED, TENSOR, VIEW

STORED_LIMIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantPlan:
    """What the graph reads.

    Attributes:
        constants: one entry per tensor, sorted by name.
        unused: parameters and buffers of the stock module that the graph doesn't read.
    """

    constants: tuple[Constant, ...]
    unused: tuple[str, ...]


def constant_plan(program: torch.export.ExportedProgram, stock: nn.Module) -> ConstantPlan:
    """The rule for every parameter, buffer and lifted constant that `program` reads.

    Args:
        program: exported from the prepared module.
        stock: the unprepared module in the same dtypes; its values aren't read.

    Raises:
        BuildError: a tensor whose origin can't be told, or that isn't what its source is.
    """
    constants = tuple(
        sorted((_constant(n, t, stock) for n, t in _used(program).items()), key=lambda c: c.name)
    )
    sources = {s for c in constants for s in c.sources}
    named = [n for n, _ in (*stock.named_parameters(), *stock.named_buffers())]
    return ConstantPlan(constants=constants, unused=tuple(n for n in named if n not in sources))


def source_tensor(module: nn.Module, path: str) -> torch.Tensor | None:
    """The parameter, buffer or tensor attribute at `path`, or None."""
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, torch.Tensor) else None


def _used(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Name in the package -> tensor, of every constant that the graph's answer comes of.

    Lowering traces the graph once more, which numbers the anonymous ones afresh in their order.
    """
    graph = program.graph_signature
    read = {n.name for n in _live(program.graph) if n.op == "placeholder"}
    tensors = {**program.constants, **program.state_dict}
    named = {**graph.inputs_to_parameters, **graph.inputs_to_buffers}
    lifted = [t for n, t in graph.inputs_to_lifted_tensor_constants.items() if n in read]
    return {
        **{target: tensors[target] for name, target in named.items() if name in read},
        **{f"_tensor_constant{i}": tensors[target] for i, target in enumerate(lifted)},
    }


def _live(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that the output comes of, be it by what they write into a tensor that it reads.

    Lowering drops the others: a last block's text stream.
    """
    writers: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        for written in _written(node):
            writers.setdefault(_base(written), []).append(node)
    found: set[torch.fx.Node] = set()
    waiting = [graph.output_node()]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [*node.all_input_nodes, *writers.get(node, ())]
    return found


def _written(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The arguments that `node` changes in place."""
    schema = getattr(node.target, "_schema", None)
    for index, argument in enumerate(schema.arguments if schema is not None else ()):
        given = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written and isinstance(given, torch.fx.Node):
            yield given


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor that `node` is a view of, of however many views; itself where it's none."""
    while node.args and isinstance(node.args[0], torch.fx.Node):
        returns = getattr(getattr(node.target, "_schema", None), "returns", ())
        aliased = any(r.alias_info is not None for r in returns)
        if not aliased and node.target is not operator.getitem:
            break
        node = node.args[0]
    return node


def _constant(name: str, tensor: torch.Tensor, stock: nn.Module) -> Constant:
    path, quantized, part = name.partition(PARAMETRIZED)
    if quantized:
        return _int8(name, f"{path}.weight", part, tensor, stock)
    own = source_tensor(stock, name)
    if own is not None and _is_view(own, tensor):
        _check_same(name, tensor, (own.shape[0], own.shape[1]), own.dtype)
        return _entry(name, VIEW, (name,), tensor)
    if own is not None and own.is_complex() and not tensor.is_complex():
        _check_same(name, tensor, _pairs_shape(own, tensor), own.dtype.to_real())
        return _entry(name, REAL, (name,), tensor)
    if own is not None:
        _check_same(name, tensor, tuple(own.shape), own.dtype)
        return _entry(name, TENSOR, (name,), tensor)
    sources = _fused_sources(name)
    if sources:
        parts = _parts(name, sources, stock)
        rows = sum(p.shape[0] for p in parts)
        _check_same(name, tensor, (rows, *parts[0].shape[1:]), parts[0].dtype)
        return _entry(name, CONCAT, sources, tensor)
    return _entry(name, STORED, (), tensor, value=_stored(name, tensor))


def _int8(name: str, weight: str, part: str, tensor: torch.Tensor, stock: nn.Module) -> Constant:
    """The constant that holds a quantized layer's data (`part` 0) or scale (1)."""
    sources = _fused_sources(weight) or (weight,)
    parts = _parts(name, sources, stock)
    rows, columns = sum(p.shape[0] for p in parts), math.prod(parts[0].shape[1:])
    expected = {"0": ((rows, columns), torch.int8), "1": ((rows, 1), torch.float32)}
    if part not in expected:
        raise BuildError(f"Constant {name} is neither a quantized layer's data nor its scale.")
    _check_same(name, tensor, *expected[part])
    return _entry(name, INT8_ROWS, sources, tensor)


def _parts(name: str, sources: tuple[str, ...], stock: nn.Module) -> list[torch.Tensor]:
    found = [source_tensor(stock, s) for s in sources]
    parts = [p for p in found if p is not None]
    if len(parts) != len(sources):
        raise BuildError(f"Constant {name} is made of {sources}, not all of which exist.")
    return parts


def _is_view(own: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether `tensor` is the matrix that the 1x1 kernel `own` is."""
    return own.dim() == 4 and own.shape[2:] == (1, 1) and tensor.dim() == 2


def _pairs_shape(own: torch.Tensor, tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of the numbers of the complex `own`: that of `tensor`, where it holds as many."""
    whole = tensor.numel() == 2 * own.numel()
    return tuple(tensor.shape) if whole else (*own.shape, 2)


def _fused_sources(name: str) -> tuple[str, ...]:
    """The stock paths that a fused projection's weight or bias is joined from, or none."""
    parent, _, leaf = name.rpartition(".")
    owner, _, fused = parent.rpartition(".")
    prefix = f"{owner}." if owner else ""
    return tuple(f"{prefix}{part}.{leaf}" for part in FUSED.get(fused, ()))


def _check_same(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise BuildError(
            f"Constant {name} is {dtype_name(tensor.dtype)} {tuple(tensor.shape)} in the graph, "
            f"but its source gives {dtype_name(dtype)} {shape}: a preparation changed it in a way "
            "that no rule describes."
        )


def _stored(name: str, tensor: torch.Tensor) -> tuple[float, ...]:
    value = getattr(tensor, "constant", None)
    real = value if value is not None else tensor
    if math.prod(tensor.shape) > STORED_LIMIT or real.is_meta or hasattr(real, "fake_mode"):
        raise BuildError(
            f"Constant {name} {tuple(tensor.shape)} is no tensor of the module by any name, and "
            f"its value can't be stored: it isn't known, or has over {STORED_LIMIT} elements."
        )
    return tuple(real.flatten().tolist())


def _entry(
    name: str,
    rule: str,
    sources: tuple[str, ...],
    tensor: torch.Tensor,
    value: tuple[float, ...] | None = None,
) -> Constant:
    return Constant(
        name=name,
        rule=rule,
        sources=sources,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        stride=tuple(tensor.stride()),
        value=value,
    )
