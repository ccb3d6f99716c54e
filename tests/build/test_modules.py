"""Modules from configs: as `from_pretrained` leaves them, and filled with seeded weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aotbuild.build.modules import (
    adopt_attributes,
    build_module,
    convert_tensors,
    fill_random,
    outline,
    quiet,
)
from aotbuild.errors import BuildError, RecipeError
from aotbuild.recipe import load_configs

PIXART = {
    "_class_name": "PixArtTransformer2DModel",
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_layers": 1,
    "sample_size": 8,
    "cross_attention_dim": 16,
    "caption_channels": 8,
    "in_channels": 4,
    "out_channels": 8,
    "norm_num_groups": 4,
}
WAN = {
    "_class_name": "WanTransformer3DModel",
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "num_layers": 1,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 16,
    "freq_dim": 16,
    "ffn_dim": 32,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "sample_size": 8,
    "patch_size": 2,
    "in_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 16,
    "out_channels": 4,
    "pos_embed_max_size": 8,
}


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def dtypes(module: nn.Module) -> dict[str, torch.dtype]:
    return {n: t.dtype for n, t in tensors(module).items()}


@pytest.mark.parametrize("config", [PIXART, WAN, SD3, load_configs("tiny")["unet"]])
def test_build_module_has_from_pretrained_dtypes_when_loaded_in_bf16(
    config: dict[str, Any], tmp_path: Path
) -> None:
    import diffusers

    cls = getattr(diffusers, config["_class_name"])
    with quiet():
        cls.from_config(config).save_pretrained(tmp_path)
        stock = cls.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    built = build_module(config, "bfloat16")
    assert dtypes(built) == dtypes(stock)
    assert not built.training
    computed = {n: b for n, b in built.named_buffers() if n not in built.state_dict()}
    assert all(torch.equal(b, tensors(stock)[n]) for n, b in computed.items())


def test_build_module_keeps_named_modules_in_fp32_when_the_class_says_so() -> None:
    found = dtypes(build_module(WAN, "bfloat16"))
    assert found["condition_embedder.time_embedder.linear_1.weight"] is torch.float32
    assert found["blocks.0.ffn.net.2.weight"] is torch.bfloat16


def test_build_module_holds_parameters_on_meta_and_buffers_real() -> None:
    built = build_module(PIXART, "float16")
    assert all(p.is_meta for p in built.parameters())
    assert not any(b.is_meta for b in built.buffers())
    assert torch.get_default_dtype() is torch.float32


def test_build_module_names_the_nearest_class_when_unknown() -> None:
    with pytest.raises(RecipeError, match="The nearest is UNet2DConditionModel"):
        build_module({"_class_name": "UNet2DConditionalModel"}, "float32")


def test_build_module_refuses_when_the_class_is_no_model() -> None:
    with pytest.raises(RecipeError, match="isn't a model"):
        build_module({"_class_name": "DDIMScheduler"}, "float32")


def test_build_module_says_what_the_class_refuses_when_the_config_is_wrong() -> None:
    config = {**load_configs("tiny")["unet"], "down_block_types": ["NoSuchBlock", "DownBlock2D"]}
    with pytest.raises(RecipeError, match=r"UNet2DConditionModel can't be built.*NoSuchBlock"):
        build_module(config, "float32")


def filled(dtype: str, seed: int = 7) -> dict[str, torch.Tensor]:
    module = build_module(WAN, dtype)
    fill_random(module, seed)
    return tensors(module)


def test_fill_random_gives_the_same_weights_when_the_seed_is_the_same() -> None:
    first, second, other = filled("float16"), filled("float16"), filled("float16", seed=8)
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert not torch.equal(first["proj_out.weight"], other["proj_out.weight"])


def test_fill_random_rounds_one_draw_when_the_dtype_differs() -> None:
    exact, double, half = filled("float32"), filled("float64"), filled("float16")
    for name, value in exact.items():
        assert torch.equal(double[name], value.to(double[name].dtype))
        assert torch.equal(half[name], value.to(half[name].dtype))


def test_fill_random_keeps_norms_near_one_and_biases_small() -> None:
    found = filled("float32")
    weight = found["condition_embedder.text_embedder.linear_2.weight"]
    assert weight.std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.2)
    assert (found["blocks.0.norm2.weight"] - 1).abs().max() < 0.3
    assert found["proj_out.bias"].abs().max() < 0.2


def test_fill_random_keeps_activations_of_order_one_through_a_model() -> None:
    module = build_module(load_configs("tiny")["vae"], "float32")
    fill_random(module, 0)
    with torch.no_grad():
        image = module.decode(torch.randn(1, 4, 8, 8), return_dict=False)[0]  # type: ignore[operator]
    assert 0.1 < image.std().item() < 10


def test_fill_random_refuses_when_a_buffer_has_no_values() -> None:
    module = build_module(PIXART, "float32")
    convert_tensors(module, lambda t: t.detach().to("meta"))
    with pytest.raises(BuildError, match="pos_embed"):
        fill_random(module, 0)


def test_convert_tensors_keeps_tied_parameters_tied() -> None:
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    module[1].weight = module[0].weight
    convert_tensors(module, lambda t: t.detach().double())
    assert module[1].weight is module[0].weight
    assert module[1].weight.dtype is torch.float64


def test_adopt_attributes_makes_buffers_of_plain_tensors() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].table = torch.arange(3)
    assert adopt_attributes(module) == ("0.table",)
    assert torch.equal(dict(module.named_buffers())["0.table"], torch.arange(3))
    assert "0.table" not in module.state_dict()


def test_quiet_restores_the_logger_when_it_ends() -> None:
    logger = logging.getLogger("diffusers")
    before = logger.level
    with quiet():
        assert logger.level == logging.CRITICAL
    assert logger.level == before


def test_outline_has_every_tensor_without_its_values() -> None:
    built = build_module(PIXART, "float16")
    outlined = outline(built)
    for held, made in (
        (built.named_parameters(), outlined.named_parameters()),
        (built.named_buffers(), outlined.named_buffers()),
    ):
        theirs, ours = dict(held), dict(made)
        assert theirs.keys() == ours.keys() != set()
        assert all(t.is_meta for t in ours.values())
        assert all((t.shape, t.dtype) == (ours[n].shape, ours[n].dtype) for n, t in theirs.items())
    assert not built.get_buffer("pos_embed.pos_embed").is_meta
