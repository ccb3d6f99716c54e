"""Named preparations: the same results, by operators that compile well, from stock tensors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from aotbuild.build.calls import RecordedCall
from aotbuild.build.constants import constant_plan
from aotbuild.build.export import Exported, export_unit
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.pack import write_constants
from aotbuild.build.preparations import NAMED, real_rotary
from aotbuild.build.prepare import prepare
from aotbuild.build.rehearse import rehearse
from aotbuild.build.verify import relative_l2
from aotbuild.errors import BuildError, RecipeError
from aotbuild.loaders.rules import make
from aotbuild.recipe import ComponentRecipe, Int8Filter, load_configs, load_recipe
from aotbuild.recipe.component import PREPARATIONS

REAL = ComponentRecipe(methods=("forward",), preparations=("real_rotary",))
QWEN: dict[str, Any] = {
    "_class_name": "QwenImageTransformer2DModel",
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "in_channels": 16,
    "out_channels": 4,
    "axes_dims_rope": [4, 6, 6],
}


def qwen(dtype: str = "float32", **changed: Any) -> nn.Module:
    module = build_module({**QWEN, **changed}, dtype)
    fill_random(module, 1)
    return module


def call(dtype: torch.dtype = torch.float32, **changed: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)
    return {
        "hidden_states": torch.randn(2, 24, 16, generator=generator).to(dtype),
        "encoder_hidden_states": torch.randn(2, 5, 16, generator=generator).to(dtype),
        "timestep": torch.tensor([0.3, 0.3], dtype=dtype),
        "img_shapes": [[(1, 6, 4)], [(1, 6, 4)]],
        "return_dict": False,
        **changed,
    }


def answer(module: nn.Module, **arguments: Any) -> torch.Tensor:
    with torch.no_grad():
        return module(**arguments)[0]  # type: ignore[no-any-return]


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "padded": ({}, {"encoder_hidden_states_mask": torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])}),
    "several images": ({}, {"img_shapes": [[(1, 4, 3), (1, 3, 4)]] * 2}),
    "layers": ({"use_layer3d_rope": True}, {"img_shapes": [[(1, 4, 3), (1, 3, 4)]] * 2}),
}


@pytest.mark.parametrize("what", CALLS)
def test_real_rotary_gives_the_stock_answer_when_the_call_is(what: str) -> None:
    config, changed = CALLS[what]
    module = qwen(**config)
    expected = answer(module, **call(**changed))  # diffusers keeps what it made of the tables
    prepare(module, REAL)
    found = answer(module, **call(**changed))
    assert relative_l2([found], [expected]) < 1e-6
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_real_rotary_turns_in_float32_when_the_model_is_in_less() -> None:
    module = qwen("bfloat16")
    expected = answer(module, **call(torch.bfloat16))
    prepare(module, REAL)
    found = answer(module, **call(torch.bfloat16))
    assert found.dtype is torch.bfloat16
    assert relative_l2([found], [expected]) < 1e-3


def test_real_rotary_leaves_other_modules_of_the_class_as_they_were() -> None:
    stock, module = qwen(), qwen()
    expected = answer(stock, **call())
    prepare(module, REAL)
    answer(module, **call())
    assert torch.equal(answer(stock, **call()), expected)


@cache
def recorded(dtype: str = "float32") -> RecordedCall:
    (real,) = rehearse(
        load_recipe("tiny"), load_configs("tiny"), resolution=(64, 64), batch=1, variant="guided"
    ).units["unet"]
    plain = {
        n: v.to("meta") if isinstance(v, torch.Tensor) else v
        for n, v in call(getattr(torch, dtype)).items()
    }
    result = torch.empty(2, 24, 16, dtype=getattr(torch, dtype), device="meta")
    return replace(real, call=plain, answer=(result,), config=QWEN, precision=dtype, rules={})


def exported(component: ComponentRecipe, dtype: str = "float32") -> Exported:
    module = recorded(dtype).module()
    prepare(module, component)
    return export_unit(module, recorded(dtype), device="cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_real_rotary_leaves_no_complex_operator_in_the_graph(dtype: str) -> None:
    assert any("complex" in o for o in exported(replace(REAL, preparations=()), dtype).operators)
    assert set(exported(REAL, dtype).operators) == {"aten.scaled_dot_product_attention.default"}


def test_constant_plan_finds_the_real_tables_in_the_stock_module() -> None:
    found = exported(REAL)
    plan = {c.name: c for c in constant_plan(found.program, recorded().module()).constants}
    stock: Any = recorded().module()
    prepared: Any = recorded().module()
    prepare(prepared, REAL)
    for name in ("pos_embed.pos_freqs", "pos_embed.neg_freqs"):
        constant, table = plan[name], stock.get_submodule("pos_embed")
        assert (constant.rule, constant.sources, constant.dtype) == ("real/1", (name,), "float32")
        assert constant.shape == (4096, 16)
        source = getattr(table, name.rpartition(".")[2])
        assert torch.equal(make(constant, [source]), prepared.get_buffer(name))
    assert "stored/1" not in {c.rule for c in plan.values()}


def test_real_tables_are_packed_as_the_numbers_that_they_are(tmp_path: Path) -> None:
    constants = constant_plan(exported(REAL).program, recorded().module()).constants
    write_constants(qwen(), constants, tmp_path)
    packed = load_file(tmp_path / "constants.safetensors")
    prepared = recorded().module()
    prepare(prepared, REAL)
    for name in ("pos_embed.pos_freqs", "pos_embed.neg_freqs"):
        assert torch.equal(packed[name], prepared.get_buffer(name))


def test_real_rotary_goes_with_int8() -> None:
    rule = Int8Filter(min_in_features=32, skip_layers=("*_in", "time_text_embed.*"))
    quantized = replace(REAL, quantization="int8dq", int8=rule)
    found = exported(quantized)
    assert not [o for o in found.operators if "complex" in o]
    rules = {c.rule for c in constant_plan(found.program, recorded().module()).constants}
    assert rules == {"tensor/1", "real/1", "int8_rows/1"}


def test_constant_plan_refuses_when_other_numbers_stand_for_a_complex_tensor() -> None:
    module = recorded().module()
    prepare(module, REAL)
    rope: Any = module.get_submodule("pos_embed")
    rope.register_buffer("pos_freqs", rope.pos_freqs[:2048].clone(), persistent=False)
    program = export_unit(module, recorded(), device="cpu").program
    with pytest.raises(BuildError, match=r"pos_freqs is float32 \(2048, 16\) in the graph, but"):
        constant_plan(program, recorded().module())


def test_real_rotary_refuses_when_the_model_has_no_such_embedding() -> None:
    for module in (nn.Linear(2, 2), build_module(load_configs("tiny")["unet"], "float32")):
        with pytest.raises(RecipeError, match="leave 'real_rotary' out of its preparations"):
            real_rotary(module)


def test_names_are_those_that_recipes_may_choose() -> None:
    assert tuple(NAMED) == PREPARATIONS


def test_every_complex_rotary_embedding_among_the_recipes_is_prepared() -> None:
    assert load_recipe("qwen-image").components["transformer"].preparations == ("real_rotary",)
