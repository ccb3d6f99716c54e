"""Preparations of a module before export, and the constant plan that undoes them at load."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from aotbuild.build.calls import RecordedCall
from aotbuild.build.constants import ConstantPlan, constant_plan
from aotbuild.build.export import export_unit
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.prepare import describe, prepare
from aotbuild.build.rehearse import Rehearsal, rehearse
from aotbuild.errors import BuildError, RecipeError
from aotbuild.loaders.state import module_state
from aotbuild.recipe import ComponentRecipe, load_configs, load_recipe

CONFIGS = load_configs("tiny")
PLAIN = ComponentRecipe(methods=("forward",))


@cache
def rehearsal() -> Rehearsal:
    return rehearse(load_recipe("tiny"), CONFIGS, resolution=(64, 64), batch=1, variant="unguided")


def answers(component: ComponentRecipe) -> torch.Tensor:
    """The small VAE's answer after `component`'s preparations, always with the same weights."""
    module = build_module(CONFIGS["vae"], "float64")
    fill_random(module, 3)
    prepare(module, component)
    z = torch.linspace(-1, 1, 4 * 64, dtype=torch.float64).reshape(1, 4, 8, 8)
    with torch.no_grad():
        found: torch.Tensor = module.decode(z, return_dict=False)[0]  # type: ignore[operator]
    return found


@pytest.mark.parametrize(
    "changed", [{"memory_format": "channels_last"}, {"fuse_qkv": True}, {"attention": "math"}]
)
def test_prepare_changes_no_result_but_by_rounding(changed: dict[str, Any]) -> None:
    # The plain processor rounds to float32 once: the VAE's attentions ask for upcast_softmax.
    found = answers(replace(PLAIN, **changed))
    torch.testing.assert_close(found, answers(PLAIN), rtol=1e-5, atol=1e-6)


def test_prepare_lays_out_convolution_weights_when_channels_last() -> None:
    module = build_module(CONFIGS["vae"], "float16")
    prepare(module, replace(PLAIN, memory_format="channels_last"))
    weight: Any = module.get_parameter("decoder.conv_in.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.is_meta


def test_describe_names_every_preparation() -> None:
    assert describe(replace(PLAIN, fuse_qkv=True, rules={"timestep": "timestep/1"})) == {
        "memory_format": "contiguous",
        "fuse_qkv": True,
        "attention": "sdpa",
        "quantization": "none",
        "int8": None,
        "rules": {"timestep": "timestep/1"},
    }


def test_describe_says_nothing_of_what_a_recipe_leaves_out() -> None:
    named = replace(PLAIN, preparations=("real_rotary",), ip_adapters=(8,))
    more = {"preparations": ["real_rotary"], "ip_adapters": [8]}
    assert describe(named) == {**describe(PLAIN), **more}


def test_prepare_refuses_when_the_class_cannot_fuse() -> None:
    with pytest.raises(RecipeError, match="Linear can't fuse"):
        prepare(nn.Linear(2, 2), replace(PLAIN, fuse_qkv=True))


def test_prepare_refuses_when_diffusers_fuses_nothing_and_says_nothing() -> None:
    config = {
        "_class_name": "ControlNetModel",
        "block_out_channels": [8],
        "down_block_types": ["CrossAttnDownBlock2D"],
        "attention_head_dim": 2,
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "cross_attention_dim": 8,
    }
    with pytest.raises(RecipeError, match="fuses none of ControlNetModel's projections"):
        prepare(build_module(config, "float32"), replace(PLAIN, fuse_qkv=True))


def flux() -> nn.Module:
    config = {
        "_class_name": "FluxTransformer2DModel",
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "in_channels": 4,
        "axes_dims_rope": [4, 4, 8],
    }
    return build_module(config, "float32")


def test_prepare_keeps_processors_when_plain_attention_is_the_graphs_affair() -> None:
    module = flux()
    prepare(module, replace(PLAIN, attention="math"))
    assert module_state(module) == module_state(flux())


def test_prepare_lets_the_dispatcher_choose_when_a_backend_is_named() -> None:
    module = flux()
    prepare(module, replace(PLAIN, attention="flex"))
    asked = [p._attention_backend.value for p in module.attn_processors.values()]
    assert asked == ["flex", "flex"]


def test_prepare_refuses_a_backend_when_the_class_asks_torch_itself() -> None:
    (recorded,) = rehearsal().units["unet"]
    with pytest.raises(RecipeError, match="its processors \\(AttnProcessor2_0\\) ask torch"):
        prepare(recorded.module(), replace(PLAIN, attention="flash"))


def planned(component: ComponentRecipe) -> tuple[ConstantPlan, nn.Module]:
    (recorded,) = rehearsal().units["vae.decode"]
    module = recorded.module()
    prepare(module, component)
    program = export_unit(module, recorded, device="cpu").program
    return constant_plan(program, recorded.module()), recorded.module()


def test_constant_plan_joins_projections_when_fused() -> None:
    plan, _ = planned(replace(PLAIN, fuse_qkv=True, memory_format="channels_last"))
    named = {c.name: c for c in plan.constants}
    attention = "decoder.mid_block.attentions.0"
    fused = named[f"{attention}.to_qkv.weight"]
    assert fused.rule == "concat/1"
    assert fused.sources == tuple(f"{attention}.to_{p}.weight" for p in "qkv")
    assert fused.shape == (96, 32)
    kernel = named["decoder.conv_in.weight"]
    assert (kernel.rule, kernel.sources) == ("tensor/1", ("decoder.conv_in.weight",))
    assert kernel.stride == (36, 1, 12, 4)
    assert f"{attention}.to_q.weight" not in named


def test_constant_plan_accounts_for_every_parameter_of_the_module() -> None:
    plan, stock = planned(replace(PLAIN, fuse_qkv=True))
    used = {s for c in plan.constants for s in c.sources}
    assert used | set(plan.unused) == {n for n, _ in stock.named_parameters()}
    assert all(n.startswith(("encoder.", "quant_conv.")) for n in plan.unused)


class Forked(nn.Module):
    """A module of which one branch leads nowhere, by way of a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = (nn.Linear(2, 2, device="meta") for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nn.functional.dropout(self.unused(x), training=False)
        found: torch.Tensor = self.used(x)
        return found


def test_constant_plan_leaves_out_what_the_answer_does_not_come_of() -> None:
    x = torch.empty(2, 2, device="meta")
    recorded: RecordedCall = replace(
        rehearsal().units["unet"][0], call={"x": x}, answer=x, method="forward", rules={}
    )
    program = export_unit(Forked(), recorded, device="cpu").program
    plan = constant_plan(program, Forked())
    assert [c.name for c in plan.constants] == ["used.bias", "used.weight"]
    assert set(plan.unused) == {"unused.bias", "unused.weight"}


class Scaled(nn.Module):
    """A module whose method makes tensors of numbers."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.linear = nn.Linear(values, values, device="meta")
        self.values = values

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * torch.tensor([float(i) for i in range(self.values)])


def scaled_plan(values: int) -> ConstantPlan:
    x = torch.empty(2, values, device="meta")
    recorded: RecordedCall = replace(
        rehearsal().units["unet"][0], call={"x": x}, answer=x, method="forward", rules={}
    )
    program = export_unit(Scaled(values), recorded, device="cpu").program
    return constant_plan(program, Scaled(values))


def test_constant_plan_stores_a_value_when_it_has_no_name() -> None:
    (stored,) = (c for c in scaled_plan(4).constants if c.rule == "stored/1")
    assert (stored.name, stored.value) == ("_tensor_constant0", (0.0, 1.0, 2.0, 3.0))


def test_constant_plan_refuses_when_the_anonymous_value_is_large() -> None:
    with pytest.raises(BuildError, match="over 4096 elements"):
        scaled_plan(5000)
