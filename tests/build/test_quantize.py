"""int8 on a module without weights: which layers, and what the graph then reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torchao.kernel.intmm as intmm
from torch import nn

from aotbuild.build.constants import ConstantPlan, constant_plan
from aotbuild.build.export import export_unit
from aotbuild.build.layers import inductor_options, judge_layers
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.prepare import describe, prepare
from aotbuild.build.quantize import (
    PARAMETRIZED,
    PointwiseLinear,
    portable_products,
    quantize_layers,
    survey,
)
from aotbuild.build.rehearse import Rehearsal, rehearse
from aotbuild.loaders.rules import int8_rows
from aotbuild.recipe import ComponentRecipe, Int8Filter, Recipe, load_configs, load_recipe

INT8 = ComponentRecipe(methods=("forward",), quantization="int8dq", int8=Int8Filter())


@cache
def rehearsal(name: str, width: int = 64) -> tuple[Recipe, Rehearsal]:
    recipe = load_recipe(name)
    variant = next(iter(recipe.call.variants))
    return recipe, rehearse(
        recipe, load_configs(name), resolution=(width, width), batch=1, variant=variant
    )


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(8, 64)
        self.wide = nn.Linear(64, 32)
        self.last = nn.Linear(64, 16)
        self.pointwise = nn.Conv2d(128, 24, 1)
        self.other = nn.Conv2d(64, 24, 1)
        self.strided = nn.Conv2d(128, 24, 1, stride=2)


def test_survey_gives_the_reason_of_each_layer_that_stays() -> None:
    rule = Int8Filter(
        min_in_features=17,
        skip_shapes=((64, 32),),
        skip_layers=("la*",),
        pointwise_channels=(128,),
    )
    layers = survey(Mixed(), replace(INT8, int8=rule))
    assert {layer.path: layer.reason for layer in layers} == {
        "narrow": "fewer than 17 input features",
        "wide": "skip_shapes holds (64, 32)",
        "last": "skip_layers holds 'la*'",
        "pointwise": None,
    }


def test_survey_leaves_out_the_parts_of_fused_projections() -> None:
    recipe, found = rehearsal("tiny")
    module = found.units["unet"][0].module()
    component = recipe.components["unet"].quantized("int8dq")
    prepare(module, replace(component, quantization="none"))
    paths = {layer.path for layer in survey(module, component)}
    attention = "mid_block.attentions.0.transformer_blocks.0"
    assert f"{attention}.attn1.to_qkv" in paths
    assert f"{attention}.attn1.to_q" not in paths
    assert {f"{attention}.attn2.to_q", f"{attention}.attn2.to_kv"} <= paths
    assert f"{attention}.attn2.to_k" not in paths


def test_sdxls_filter_admits_397_layers_of_the_unet_and_none_of_the_decoder() -> None:
    recipe, found = rehearsal("sdxl", 1024)
    fates = {}
    for unit in ("unet", "vae.decode"):
        (recorded,) = found.units[unit]
        component, layers = judge_layers(recorded, recipe.components[recorded.component])
        fates[unit] = (component.quantization, Counter(la.reason is None for la in layers))
    assert fates["unet"] == ("int8dq", {True: 397, False: 136})
    assert fates["vae.decode"] == ("none", {False: 3})


def test_an_unquantized_unit_is_described_as_one_that_never_had_a_filter() -> None:
    recipe, found = rehearsal("sdxl", 1024)
    (recorded,) = found.units["vae.decode"]
    component, _ = judge_layers(recorded, recipe.components["vae"])
    plain = replace(recipe.components["vae"], quantization="none", int8=None)
    assert describe(component) == describe(plain)
    assert inductor_options(component) == plain.inductor


def test_int8_brings_inductors_options_that_this_torch_has() -> None:
    assert inductor_options(INT8)["force_fuse_int_mm_with_mul"] is True
    chosen = replace(INT8, inductor={"force_fuse_int_mm_with_mul": False})
    assert inductor_options(chosen)["force_fuse_int_mm_with_mul"] is False


def test_a_pointwise_convolution_answers_the_same_as_a_linear_layer() -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(16, 8, 1)
    linear = PointwiseLinear(16, 8)
    linear.weight.data, linear.bias.data = convolution.weight.data.flatten(1), convolution.bias.data  # type: ignore[union-attr]
    x = torch.randn(2, 16, 5, 3)
    torch.testing.assert_close(linear(x), convolution(x))


def planned(component: ComponentRecipe, unit: str) -> tuple[ConstantPlan, nn.Module]:
    _, found = rehearsal("tiny")
    recorded = found.units[unit][0]
    module = recorded.module()
    prepare(module, component)
    program = export_unit(module, recorded, device="cpu").program
    return constant_plan(program, recorded.module()), recorded.module()


def test_constant_plan_has_data_and_scale_of_each_quantized_layer() -> None:
    recipe, found = rehearsal("tiny")
    component = recipe.components["unet"].quantized("int8dq")
    plan, stock = planned(component, "unet")
    _, layers = judge_layers(found.units["unet"][0], component)
    admitted = [layer.path for layer in layers if layer.reason is None]
    named: dict[str, Any] = {c.name: c for c in plan.constants}
    for layer in layers:
        data = named.get(f"{layer.path}{PARAMETRIZED}0")
        assert (data is not None) == (layer.reason is None), layer
        if data is not None:
            scale = named[f"{layer.path}{PARAMETRIZED}1"]
            assert data.rule == scale.rule == "int8_rows/1"
            assert data.sources == scale.sources
            assert (data.dtype, data.shape) == ("int8", (layer.out_features, layer.in_features))
            assert (scale.dtype, scale.shape) == ("float32", (layer.out_features, 1))
    assert sum(c.rule == "int8_rows/1" for c in plan.constants) == 2 * len(admitted)
    used = {s for c in plan.constants for s in c.sources}
    assert used | set(plan.unused) == {n for n, _ in stock.named_parameters()}


def test_constant_plan_views_a_kernel_when_it_became_a_matrix() -> None:
    rule = Int8Filter(pointwise_channels=(32,), skip_layers=("decoder.up_blocks.*",))
    component = replace(INT8, methods=("decode",), int8=rule)
    plan, _ = planned(component, "vae.decode")
    views = {c.name: c for c in plan.constants if c.rule == "view/1"}
    assert set(views) == {"decoder.up_blocks.2.resnets.0.conv_shortcut.weight"}
    (view,) = views.values()
    assert (len(view.shape), view.sources) == (2, (view.name,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_derived_constants_are_torchaos_for_every_quantized_layer(dtype: torch.dtype) -> None:
    recipe, found = rehearsal("tiny")
    component = recipe.components["unet"].quantized("int8dq")
    plan, _ = planned(component, "unet")
    module = build_module(found.units["unet"][0].config, "float32")
    fill_random(module, 5)
    module.to(dtype)
    derived = {
        c.name: int8_rows([module.get_parameter(s) for s in c.sources])[c.dtype != "int8"]
        for c in plan.constants
        if c.rule == "int8_rows/1"
    }
    prepare(module, component)
    theirs = dict(module.named_parameters())
    assert len(derived) == 72
    assert all(torch.equal(t, theirs[n].to(t.dtype)) for n, t in derived.items())


def test_products_are_traced_alike_whatever_cpu_this_is() -> None:
    before = (intmm._cpu_is_vnni_supported, intmm._cpu_is_amx_tile_supported)
    with portable_products():
        assert not intmm._cpu_is_vnni_supported()
    assert before == (intmm._cpu_is_vnni_supported, intmm._cpu_is_amx_tile_supported)


def test_quantizing_sets_none_of_inductors_options() -> None:
    import torch._inductor.config as config

    before = config.get_config_copy()
    quantize_layers(nn.Sequential(nn.Linear(32, 32)), {"0"})
    assert config.get_config_copy() == before
