"""A module whose products are quantized, as a build prepares one, for the loader's tests."""

from __future__ import annotations

import copy
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild.build.quantize import quantize_layers
from aotbuild.cache.manifest import Constant, Manifest

from . import making, nets
from .conftest import RULES, Kit, net_plan

QUANTIZED = {"to_qkv": ("to_q", "to_k", "to_v"), "mix": ("mix",)}
PARAMETRIZED = "parametrizations.weight.original"


class Casting(nn.Linear):
    """Takes time steps, which are float32 whatever the module is."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.to(self.weight.dtype))


class Stock(nets.Net):
    """`nets.Net` with two 1x1 convolutions before q, k and v."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Casting(1, 16)
        self.mix = nn.Conv2d(16, 16, 1)
        self.point = nn.Conv2d(16, 16, 1)

    def qkv(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        image = tokens.transpose(1, 2)[..., None]
        return super().qkv(self.point(self.mix(image))[..., 0].transpose(1, 2))


class Prepared(Stock):
    """`Stock` with matrix products alone: q, k and v joined, the 1x1 convolutions linear."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = nn.Linear(16, 48)
        self.mix, self.point = nn.Linear(16, 16), nn.Linear(16, 16)

    def qkv(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.to_qkv(self.point(self.mix(tokens))).chunk(3, dim=-1)


def stock(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    module = Stock().eval().to(dtype)
    module.rope.angles = module.rope.angles.to(dtype)
    return module


def call(seed: int = 1, dtype: torch.dtype = torch.float32, **others: Any) -> dict[str, Any]:
    made = nets.call(seed, return_dict=False, **others)
    return {**made, "sample": made["sample"].to(dtype)}


def torchaos(module: Any) -> Any:
    """The module as a build prepares it, its weights quantized by torchao."""
    made = Prepared().eval().to(module.to_q.weight.dtype)
    values = dict(module.state_dict())
    for kind in ("weight", "bias"):
        values[f"to_qkv.{kind}"] = torch.cat([values[f"to_{x}.{kind}"] for x in "qkv"])
    values = {k: v.flatten(1) if k in ("mix.weight", "point.weight") else v
              for k, v in values.items()}  # fmt: skip
    made.load_state_dict(values)
    made.lost, made.rope = module.lost, copy.deepcopy(module.rope)
    quantize_layers(made, set(QUANTIZED))
    return made


def plan(module: Any) -> tuple[Constant, ...]:
    replaced = ("to_q.", "to_k.", "to_v.", "mix.weight", "point.weight")
    kept = [c for c in net_plan(module) if not c.name.startswith(replaced)]
    biases = tuple(f"to_{x}.bias" for x in "qkv")
    joined = torch.cat([module.get_parameter(s) for s in biases])
    kept.append(making.constant("to_qkv.bias", joined, "concat/1", biases))
    matrix = module.point.weight.flatten(1)
    kept.append(making.constant("point.weight", matrix, "view/1", ("point.weight",)))
    for path, parts in QUANTIZED.items():
        sources = tuple(f"{p}.weight" for p in parts)
        rows = sum(module.get_parameter(s).shape[0] for s in sources)
        for index, made in enumerate((torch.empty(rows, 16).to(torch.int8), torch.empty(rows, 1))):
            name = f"{path}.{PARAMETRIZED}{index}"
            kept.append(making.constant(name, made, "int8_rows/1", sources))
    return tuple(sorted(kept, key=lambda c: c.name))


def write(kit: Kit, dtype: torch.dtype = torch.float32, **others: Any) -> Manifest:
    """Compile it for `dtype`, and put the artifact into the kit's store."""
    module, example = stock(dtype=dtype), call(dtype=dtype)
    text = Path(__file__).read_bytes()
    name = str(dtype).removeprefix("torch.")
    package = kit.compiled / f"int8-{name}-{zlib.crc32(text):08x}.pt2"
    if not package.exists():
        compile_int8(torchaos(module), set(), example, package)
    signature = making.signature_of(module, "forward", example, RULES)
    change = others.pop("change", lambda fields: None)

    def edit(fields: dict[str, Any]) -> None:
        fields["precision"] = name
        change(fields)

    constants = others.pop("plan", None) or plan(module)
    return making.write_artifact(
        kit.store, module, package, signature, constants, change=edit, **others
    )


def compile_int8(module: nn.Module, paths: set[str], call: dict[str, Any], out: Path) -> None:
    """Quantize the layers at `paths` of a copy, and compile that."""
    from torch._functorch._aot_autograd.subclass_parametrization import (
        unwrap_tensor_subclass_parameters,
    )

    subject = copy.deepcopy(module)
    quantize_layers(subject, paths)
    unwrap_tensor_subclass_parameters(subject)
    making.compile_call(subject, "forward", call, out)
