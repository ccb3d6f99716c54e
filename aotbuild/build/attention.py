"""Attention for a GPU that isn't there: the kernel that torch would take, put into the graph.

`scaled_dot_product_attention` asks the device which kernel to take. Without one it silently takes
MATH, the slow one that holds the whole score matrix; here that is an error.

Source: `scaled_dot_product_attention` in
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/attention.cpp
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from aotbuild.build.attention_choice import Attention, Kind, refusals, same
from aotbuild.errors import BuildError
from aotbuild.gpus import Gpu
from aotbuild.recipe.backends import PLAIN

_CUDNN_LOWEST = 65504.0
"""cuDNN mishandles minus infinity in a mask; torch hands it float16's lowest number instead."""

_aten = torch.ops.aten
_SDPA = _aten.scaled_dot_product_attention.default
_ASKED: dict[str, Kind] = {
    "_native_cudnn": "cudnn",
    "_native_flash": "flash",
    "_native_efficient": "efficient",
}
"""Backends that are one of torch's kernels."""


def spell_out_attention(program: ExportedProgram) -> dict[str, int]:
    """Put plain arithmetic in the place of each attention call, in place; how many there were."""
    graph = program.graph_module.graph
    nodes = graph.find_nodes(op="call_function", target=_SDPA)
    for node in nodes:
        _substitute(program, node, _math)
    program.graph_module.recompile()
    return {"math": len(nodes)} if nodes else {}


def lower_attention(
    program: ExportedProgram, gpu: Gpu, cudnn: int | None = None, attention: str = "sdpa"
) -> dict[str, int]:
    """Put the kernel that torch would choose on this GPU in the place of each attention call.

    Args:
        program: changed in place; its tensors are fake ones on "cuda".
        gpu: the one that is built for.
        cudnn: cuDNN's version; by default that of this torch.
        attention: the recipe's backend; one of torch's kernels, or plain arithmetic, is taken
            instead of torch's choice.

    Returns:
        How many calls went to each kernel.

    Raises:
        BuildError: a call that only MATH would take, or that the backend doesn't take; names the
            module and each kernel's reason.
    """
    if attention in PLAIN:
        return spell_out_attention(program)
    version = _cudnn_version() if cudnn is None else cudnn
    graph, counts = program.graph_module.graph, Counter[str]()
    for node in graph.find_nodes(op="call_function", target=_SDPA):
        answers = refusals(_describe(node), gpu, version)
        if asked := _ASKED.get(attention):
            absent = f"cuDNN {version} isn't asked for attention on {gpu.arch}"
            answers = {asked: answers.get(asked, absent)}
        kind = next((k for k, reason in answers.items() if reason is None), None)
        if kind is None:
            raise BuildError(_explain(node, gpu, answers))
        _substitute(program, node, _KERNELS[kind])
        counts[kind] += 1
    program.graph_module.recompile()
    return dict(sorted(counts.items()))


def _describe(node: fx.Node) -> Attention:
    call = _arguments(node)
    query, key, value, mask = (_value(call.get(n)) for n in ("query", "key", "value", "attn_mask"))
    return Attention(
        dtype=query.dtype,
        query=tuple(query.shape),
        key=tuple(key.shape),
        value=tuple(value.shape),
        mask=None if mask is None else tuple(mask.shape),
        dense=all(same(t.stride(-1), 1) or same(t.shape[-1], 1) for t in (query, key, value)),
        causal=bool(call.get("is_causal", False)),
        dropout=float(call.get("dropout_p", 0.0)),
        grouped=bool(call.get("enable_gqa", False)),
    )


def _arguments(node: fx.Node) -> dict[str, Any]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _substitute(program: ExportedProgram, node: fx.Node, make: Make) -> None:
    call = _arguments(node)
    editor = _Editor(program.graph_module.graph, node)
    with program.graph_module.graph.inserting_before(node):
        result = make(editor, call)
    node.replace_all_uses_with(result, propagate_meta=False)
    program.graph_module.graph.erase_node(node)
    for spec in program.graph_signature.output_specs:
        if getattr(spec.arg, "name", None) == node.name:
            spec.arg.name = result.name


@dataclass(frozen=True, slots=True)
class _Editor:
    """Adds nodes in the place of one, with the values that later passes read off them."""

    graph: fx.Graph
    node: fx.Node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        new = self.graph.call_function(target, args, kwargs)
        new.meta.update({k: v for k, v in self.node.meta.items() if k != "val"})
        named = zip(kwargs, _values(kwargs.values()), strict=True)
        with self.node.meta["val"].fake_mode:
            new.meta["val"] = target(*_values(args), **dict(named))
        return new

    def extent(self, tensor: fx.Node, dim: int) -> Any:
        """The extent as a number, or as a node where it is symbolic."""
        extent = tensor.meta["val"].shape[dim]
        return extent if isinstance(extent, int) else self.call(_aten.sym_size.int, tensor, dim)


def _cudnn(editor: _Editor, call: Mapping[str, Any]) -> fx.Node:
    mask = _additive(editor, call, -_CUDNN_LOWEST)
    answer = editor.call(
        _aten._scaled_dot_product_cudnn_attention.default,
        *(call["query"], call["key"], call["value"], mask),
        *(False, 0.0, call.get("is_causal", False), False),
        scale=call.get("scale"),
    )
    return editor.call(operator.getitem, answer, 0)


def _flash(editor: _Editor, call: Mapping[str, Any]) -> fx.Node:
    width = call["query"].meta["val"].shape[-1]
    scale = call.get("scale")
    tensors = [call["query"], call["key"], call["value"]]
    if width % 8:
        padding = [0, 8 - width % 8]
        tensors = [editor.call(_aten.constant_pad_nd.default, t, padding) for t in tensors]
    answer = editor.call(
        _aten._scaled_dot_product_flash_attention.default,
        *tensors,
        *(0.0, call.get("is_causal", False), False),
        scale=width**-0.5 if scale is None else scale,
    )
    result = editor.call(operator.getitem, answer, 0)
    return editor.call(_aten.slice.Tensor, result, -1, 0, width) if width % 8 else result


def _efficient(editor: _Editor, call: Mapping[str, Any]) -> fx.Node:
    query, key = call["query"], call["key"]
    mask = _additive(editor, call, float("-inf"))
    if mask is not None:
        extents = [editor.extent(query, dim) for dim in (0, 1, 2)] + [editor.extent(key, 2)]
        mask = editor.call(_aten.expand.default, mask, extents)
    answer = editor.call(
        _aten._scaled_dot_product_efficient_attention.default,
        *(query, key, call["value"], mask),
        *(False, 0.0, call.get("is_causal", False)),
        scale=call.get("scale"),
    )
    return editor.call(operator.getitem, answer, 0)


def _math(editor: _Editor, call: Mapping[str, Any]) -> fx.Node:
    mask = _additive(editor, call, float("-inf"))
    answer = editor.call(
        _aten._scaled_dot_product_attention_math.default,
        *(call["query"], call["key"], call["value"], mask),
        *(0.0, call.get("is_causal", False), None),
        scale=call.get("scale"),
        enable_gqa=call.get("enable_gqa", False),
    )
    return editor.call(operator.getitem, answer, 0)


Make = Callable[[_Editor, Mapping[str, Any]], fx.Node]
_KERNELS: dict[Kind, Make] = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient}


def _additive(editor: _Editor, call: Mapping[str, Any], excluded: float) -> fx.Node | None:
    """The mask as a summand in the query's dtype."""
    mask, dtype = call.get("attn_mask"), call["query"].meta["val"].dtype
    if mask is None:
        return None
    if mask.meta["val"].dtype is torch.bool:
        mask = editor.call(_aten.where.Scalar, mask, 0.0, excluded)
    if mask.meta["val"].dtype is not dtype:
        mask = editor.call(_aten._to_copy.default, mask, dtype=dtype)
    node: fx.Node = mask
    return node


def _explain(node: fx.Node, gpu: Gpu, answers: Mapping[Kind, str | None]) -> str:
    stack = list(node.meta.get("nn_module_stack", {}).values())
    where = f"{stack[-1][0]} ({stack[-1][1].rpartition('.')[2]})" if stack else node.name
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in answers.items())
    if len(answers) == 1:
        return (
            f"The backend that is asked for doesn't take the attention of {where} on {gpu.name} "
            f"({gpu.arch}): {reasons}. Name another, or leave it to torch: sdpa."
        )
    return (
        f"Only the MATH kernel would take the attention of {where} on {gpu.name} ({gpu.arch}): "
        f'{reasons}. Choose another precision, or write `attention = "math"` for this component '
        "in the recipe if plain attention is meant."
    )


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _values(arguments: Any) -> list[Any]:
    return [[_value(i) for i in a] if isinstance(a, list) else _value(a) for a in arguments]


def _cudnn_version() -> int | None:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version
