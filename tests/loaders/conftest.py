"""Compiled code for the loader's tests; what was compiled once is kept in pytest's own cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import aotbuild
from aotbuild.cache.manifest import Constant
from aotbuild.cache.signature import Signature
from aotbuild.cache.store import Store

from . import making, nets

RULES = {"timestep": "timestep/1"}
Loader = Callable[..., aotbuild.Loaded]


@pytest.fixture(scope="session")
def compiled(pytestconfig: pytest.Config) -> Path:
    """A folder for packages, named after what goes into them."""
    here = Path(__file__).parent
    text = (here / "nets.py").read_bytes()
    name = hashlib.sha256(text + torch.__version__.encode()).hexdigest()[:12]
    return Path(pytestconfig.cache.mkdir(f"compiled-{name}"))


def net_plan(module: nn.Module, *, fused: bool = False) -> tuple[Constant, ...]:
    named = [*module.named_parameters(), *module.named_buffers()]
    plan = [making.constant(n, t) for n, t in named]
    attribute = ("rope.angles",)
    plan.append(making.constant("_tensor_constant0", module.rope.angles, "tensor/1", attribute))
    if not fused:
        return tuple(plan)
    plan = [c for c in plan if not c.name.startswith(("to_q.", "to_k.", "to_v."))]
    for kind in ("weight", "bias"):
        sources = tuple(f"to_{x}.{kind}" for x in "qkv")
        joined = torch.cat([module.get_parameter(s) for s in sources])
        plan.append(making.constant(f"to_qkv.{kind}", joined, "concat/1", sources))
    return tuple(plan)


def model_plan(module: nn.Module, prefixes: tuple[str, ...] = ("",)) -> tuple[Constant, ...]:
    named = module.named_parameters()
    return tuple(making.constant(n, p) for n, p in named if n.startswith(prefixes))


class Kit:
    """Writes artifacts of one package each into a store of the test's own, and loads them."""

    def __init__(self, compiled: Path, root: Path) -> None:
        self.compiled = compiled
        self.store = Store(root / "store")
        self.libraries = root / "libraries"
        self.loaded: list[aotbuild.Loaded] = []

    def net(self, size: int = 16, **others: Any) -> Any:
        module, call = nets.net(), nets.call(size=size, return_dict=False)
        package = self.compiled / f"net{size}.pt2"
        making.compile_call(module, "forward", call, package)
        signature = making.signature_of(module, "forward", call, RULES)
        plan = others.pop("plan", None) or net_plan(module)
        return making.write_artifact(self.store, module, package, signature, plan, **others)

    def scaled_net(self, **others: Any) -> Any:
        module = nets.net()
        call = nets.call(gain=torch.tensor(1.0), return_dict=False)
        package = self.compiled / "scaled.pt2"
        making.compile_call(module, "forward", call, package)
        signature = making.signature_of(module, "forward", call, {**RULES, "gain": "scalar/1"})
        plan = net_plan(module)
        return making.write_artifact(self.store, module, package, signature, plan, **others)

    def dynamic_net(self, **others: Any) -> Any:
        module, call = nets.net(), nets.call(size=32, return_dict=False)
        h, w = torch.export.Dim("h", min=1, max=4), torch.export.Dim("w", min=1, max=4)
        shapes = {"sample": {2: 8 * h, 3: 8 * w}, "timestep": None, "return_dict": None}
        package = self.compiled / "dynamic.pt2"
        making.compile_call(module, "forward", call, package, shapes)
        exact = making.signature_of(module, "forward", call, RULES)
        sample = replace(exact.inputs[0], shape=(2, 4, "8*h", "8*w"), stride=None)
        signature = replace(
            exact, inputs=(sample, exact.inputs[1]), symbols=(("h", 1, 4), ("w", 1, 4)),
            outputs=(replace(exact.outputs[0], shape=sample.shape, stride=None),),
        )  # fmt: skip
        plan = net_plan(module)
        return making.write_artifact(self.store, module, package, signature, plan, **others)

    def fused_net(self, **others: Any) -> Any:
        module, call = nets.net(), nets.call(return_dict=False)
        torch.manual_seed(0)
        package = self.compiled / "fused.pt2"
        making.compile_call(nets.FusedNet().eval(), "forward", call, package)
        signature = making.signature_of(module, "forward", call, RULES)
        plan = net_plan(module, fused=True)
        return making.write_artifact(self.store, module, package, signature, plan, **others)

    def unet(self, **others: Any) -> Any:
        module, call = nets.unet(), nets.unet_call()
        package = self.compiled / "unet.pt2"
        making.compile_call(module, "forward", call, package)
        signature = making.signature_of(module, "forward", call, RULES)
        return making.write_artifact(
            self.store, module, package, signature, model_plan(module), component="unet", **others
        )

    def vae(self, precision: str = "float32") -> Any:
        module = nets.vae()
        call = {"z": torch.zeros(1, 4, 8, 8), "return_dict": False}
        package = self.compiled / "vae.pt2"
        making.compile_call(module, "decode", call, package)
        signature = making.signature_of(module, "decode", call, {})
        plan = model_plan(module, ("decoder.", "post_quant_conv."))
        return making.write_artifact(
            self.store, module, package, signature, plan, component="vae.decode", method="decode",
            change=lambda fields: fields.update(precision=precision),
        )  # fmt: skip

    def load(self, **components: nn.Module) -> aotbuild.Loaded:
        options = {k: components.pop(k) for k in list(components) if k in OPTIONS}
        loaded = aotbuild.load(
            SimpleNamespace(**components), self.store.root, store=self.libraries, **options
        )
        self.loaded.append(loaded)
        return loaded


OPTIONS = (
    "components",
    "fallback",
    "self_check",
    "require_verified",
    "num_runners",
    "checkpoint",
    "quant",
    "scope",
    "allow_jit_cache",
)


@pytest.fixture
def kit(compiled: Path, tmp_path: Path) -> Iterator[Kit]:
    made = Kit(compiled, tmp_path)
    yield made
    for loaded in made.loaded:
        loaded.restore()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


__all__ = ["Kit", "Signature"]
