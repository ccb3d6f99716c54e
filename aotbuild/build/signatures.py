"""The signature of a recorded call: from the rehearsal, and after export in the package's order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from aotbuild.build.calls import SCALARS, RecordedCall, dtype_name, is_output
from aotbuild.build.ranges import Range
from aotbuild.cache.signature import Extent, Signature, Static, TensorSpec, flatten
from aotbuild.errors import BuildError

Leaf = tuple[str, torch.Tensor]


def planned_signature(recorded: RecordedCall, device: str, dynamic: Range | None) -> Signature:
    """The signature as the rehearsal tells it, for tensors on `device` ("cpu" or "cuda").

    What an export says differs at most in the order of the inputs and in the outputs' strides.
    """
    inputs = [(p, v) for p, v in leaves(recorded.call) if isinstance(v, torch.Tensor)]
    outputs = [(p, v) for p, v in leaves(recorded.answer) if isinstance(v, torch.Tensor)]
    return make_signature(recorded, inputs, outputs, dynamic, device)


def make_signature(
    recorded: RecordedCall,
    inputs: list[Leaf],
    outputs: list[Leaf],
    dynamic: Range | None,
    device: str,
) -> Signature:
    """The signature of `recorded` with these tensors, in this order."""
    extents = dynamic.extents if dynamic else {}
    answer_extents = dynamic.answer_extents if dynamic else {}
    return Signature(
        inputs=tuple(_spec(p, v, extents, recorded.rules, device) for p, v in inputs),
        static=_static(recorded.call),
        outputs=tuple(_spec(p, v, answer_extents, {}, device) for p, v in outputs),
        returns=_returns(recorded.answer),
        symbols=dynamic.symbols if dynamic else (),
    )


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) in pytree's order: dicts as they were filled, None a leaf like any other."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}.{name}" if path else name)
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}.{i}" if path else str(i))
    else:
        yield path, value


def _spec(
    path: str,
    tensor: torch.Tensor,
    extents: Mapping[str, tuple[Extent, ...]],
    rules: Mapping[str, str],
    device: str,
) -> TensorSpec:
    moving = extents.get(path)
    return TensorSpec(
        path=path,
        shape=moving or tuple(int(e) for e in tensor.shape),
        dtype=dtype_name(tensor.dtype),
        stride=None if moving else tuple(int(s) for s in tensor.stride()),
        device=device,
        rule=rules.get(path),
    )


def _returns(answer: Any) -> tuple[tuple[str, Static], ...]:
    """What comes back beside the tensors; of an output object, its class and fields."""
    objects = dict(_objects(answer))
    return tuple((path, objects.get(path, value)) for path, value in _static(answer))


def _objects(value: Any, path: str = "") -> Iterator[tuple[str, Static]]:
    if is_output(value):
        cls = type(value)
        yield path, {"object": [f"{cls.__module__}.{cls.__qualname__}", *value]}
    if isinstance(value, (dict, list, tuple)):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _objects(item, f"{path}.{name}" if path else str(name))


def _static(value: Any) -> tuple[tuple[str, Static], ...]:
    entries: list[tuple[str, Static]] = []
    for path, leaf in flatten(value):
        if isinstance(leaf, torch.Tensor):
            continue
        if not isinstance(leaf, (dict, *SCALARS)):
            raise BuildError(
                f"{path or 'the answer'} is a {type(leaf).__name__}, which no package returns; "
                "compile a method that returns plain tensors."
            )
        entries.append((path, leaf))
    return tuple(sorted(entries, key=lambda entry: entry[0]))
