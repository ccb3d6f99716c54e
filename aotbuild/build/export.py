"""Export one recorded call on fake tensors of the target's device. Compiles nothing itself.

Private names of torch in use here, tried on 2.13.0 and 2.14.1: `FakeTensorMode` (documented under
"Fake tensor"), `ShapeEnv`, `proxy_tensor.CONSTANT_NUMEL_LIMIT`, and the `_state_dict`, `_constants`
and `_example_inputs` of `ExportedProgram`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.experimental.proxy_tensor as proxy_tensor
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aotbuild.build.breaks import explain_break
from aotbuild.build.calls import RecordedCall, map_tensors
from aotbuild.build.modules import adopt_attributes, convert_tensors, quiet
from aotbuild.build.quantize import portable_products
from aotbuild.build.ranges import Range
from aotbuild.build.signatures import leaves, make_signature
from aotbuild.build.symbolic import symbolic_int
from aotbuild.cache.signature import Signature
from aotbuild.errors import BuildError, ExportError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A unit as a graph.

    Attributes:
        program: the exported program; its weights are fake tensors of its own fake mode.
        signature: the calls it serves, inputs in the order in which the package will take them.
        adopted: paths of tensors that were plain attributes of the module.
        operators: operator -> how often, of those worth a look: attention, complex arithmetic.
    """

    program: torch.export.ExportedProgram
    signature: Signature
    adopted: tuple[str, ...]
    operators: dict[str, int]


def export_unit(
    module: nn.Module,
    recorded: RecordedCall,
    *,
    device: str,
    dynamic: Range | None = None,
    blocks: tuple[str, ...] = (),
) -> Exported:
    """Export `recorded` from the prepared `module`, on `device` ("cpu" or "cuda:0").

    Args:
        module: parameters on the meta device, buffers real, in the dtypes of the call. It is used
            up: its tensors become fake ones of `device`.
        recorded: the call, as the rehearsal made it.
        device: no such device need be there; "cuda:0" needs a CUDA build of torch.
        dynamic: the range to export for, of `ranges.find_range`.
        blocks: classes that the recipe names as repeated blocks, to say what helps.

    Raises:
        ExportError: torch can't trace it; names the line of the model that broke.
    """
    adopted = adopt_attributes(module)
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with mode, torch.no_grad(), quiet(), _no_folding(device), portable_products():
        convert_tensors(module, lambda t: _fake(t, device))
        # What moves is promised to be contiguous, all else to lie as it was recorded.
        moving = {id(t) for p, t in leaves(recorded.call) if dynamic and p in dynamic.extents}
        call = map_tensors(
            lambda t: _fake(t.contiguous() if id(t) in moving else t, device), recorded.call
        )
        if recorded.method != "forward":
            module.forward = getattr(module, recorded.method)
        try:
            with symbolic_int(module) if dynamic else contextlib.nullcontext():
                program = torch.export.export(
                    module,
                    (),
                    call,
                    strict=False,
                    dynamic_shapes=dynamic.dynamic_shapes if dynamic else None,
                )
        except Exception as e:
            raise ExportError(explain_break(module, recorded, blocks, e)) from e
    _rehome(program)
    return Exported(
        program=program,
        signature=_signature(program, recorded, dynamic, device),
        adopted=adopted,
        operators=_notable(program),
    )


def _fake(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


@contextlib.contextmanager
def _no_folding(device: str) -> Iterator[None]:
    """Keep tracing from executing one-element constants on a GPU that isn't there."""
    name = "CONSTANT_NUMEL_LIMIT"
    before = getattr(proxy_tensor, name)
    if device.startswith("cuda"):
        setattr(proxy_tensor, name, 0)
    try:
        yield
    finally:
        setattr(proxy_tensor, name, before)


def _rehome(program: torch.export.ExportedProgram) -> None:
    """Move weights and constants into the fake mode that export made for the graph's inputs.

    Later passes refuse a program whose tensors belong to two modes.
    """
    values = (n.meta.get("val") for n in program.graph.nodes)
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: Any) -> Any:
        if not isinstance(tensor, FakeTensor) or mode is None or tensor.fake_mode is mode:
            return tensor
        if id(tensor) not in moved:
            with mode:
                new = _fake(tensor, str(tensor.device))
            new.constant = tensor.constant  # type: ignore[attr-defined]
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(new, False) if is_parameter else new
        return moved[id(tensor)]

    program._state_dict = {n: move(t) for n, t in program._state_dict.items()}
    program._constants = {n: move(t) for n, t in program._constants.items()}
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        program._example_inputs = (map_tensors(move, args), map_tensors(move, kwargs))


def _signature(
    program: torch.export.ExportedProgram,
    recorded: RecordedCall,
    dynamic: Range | None,
    device: str,
) -> Signature:
    """The call signature, its tensors in the order of the graph's inputs and outputs."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes}
    graph = program.graph_signature
    inputs = [values.get(s.arg.name) for s in _user(graph.input_specs, "USER_INPUT")]
    outputs = [
        values.get(getattr(s.arg, "name", "")) for s in _user(graph.output_specs, "USER_OUTPUT")
    ]
    answers = [p for p, _ in leaves(recorded.answer)]
    if len(answers) != len(outputs):
        raise BuildError(
            f"{recorded.unit}: the graph returns {len(outputs)} values, the rehearsal saw "
            f"{len(answers)}. A preparation of the recipe changes what the module returns."
        )
    paths = [p for p, _ in leaves(recorded.call)]
    taken = [(p, v) for p, v in zip(paths, inputs, strict=True) if isinstance(v, torch.Tensor)]
    given = [(p, v) for p, v in zip(answers, outputs, strict=True) if isinstance(v, torch.Tensor)]
    return make_signature(recorded, taken, given, dynamic, device.partition(":")[0])


def _user(specs: Any, kind: str) -> list[Any]:
    return [s for s in specs if s.kind.name == kind]


def _notable(program: torch.export.ExportedProgram) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in program.graph.nodes:
        name = str(node.target)
        value = node.meta.get("val")
        is_complex = isinstance(value, torch.Tensor) and value.dtype.is_complex
        if node.op == "call_function" and (is_complex or "attention" in name):
            label = f"{name} (complex)" if is_complex else name
            counts[label] = counts.get(label, 0) + 1
    return dict(sorted(counts.items()))
