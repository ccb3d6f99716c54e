"""A denoiser as `load_ip_adapter` leaves it, without weights: against one that has loaded some."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from aotbuild.build.ip_adapter import add_ip_adapters
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.stand_in import Recorder
from aotbuild.errors import RecipeError
from aotbuild.loaders.state import identify, module_state
from aotbuild.recipe import load_configs

UNET = load_configs("tiny")["unet"]
WIDTH = 24


def loaded_for_real() -> Any:
    """A UNet with real weights, into which an adapter's were loaded as a pipeline loads them."""
    module: Any = build_module(UNET, "float32")
    fill_random(module, 0)
    text = UNET["cross_attention_dim"]
    adapter = {}
    for number, (path, child) in enumerate(
        (p, m) for p, m in module.named_modules() if p.endswith(("attn1", "attn2"))
    ):
        if path.endswith("attn2"):
            width = child.to_k.out_features
            adapter |= {f"{number}.to_{x}_ip.weight": torch.randn(width, text) for x in "kv"}
    image = {
        "proj.weight": torch.randn(4 * text, WIDTH),
        "proj.bias": torch.randn(4 * text),
        "norm.weight": torch.randn(text),
        "norm.bias": torch.randn(text),
    }
    module._load_ip_adapter_weights([{"image_proj": image, "ip_adapter": adapter}])
    return module.eval()


def test_layers_and_state_are_those_of_a_loaded_adapter() -> None:
    made = add_ip_adapters(build_module(UNET, "float32"), (WIDTH,), "float32")
    real = loaded_for_real()
    shapes = {n: (p.shape, p.dtype) for n, p in made.named_parameters()}
    assert shapes == {n: (p.shape, p.dtype) for n, p in real.named_parameters()}
    assert all(p.is_meta for p in made.parameters())
    assert identify(made) == identify(real)
    assert module_state(made) == module_state(real)
    assert "IPAdapterAttnProcessor2_0" in str(module_state(made)["processors"])


def test_recorded_module_has_the_adapter_that_the_stand_in_had() -> None:
    recorder = Recorder("unet", UNET, "bfloat16", {}, (WIDTH,))
    call: dict[str, Any] = {
        "sample": torch.zeros(2, 4, 16, 16, dtype=torch.bfloat16),
        "timestep": torch.zeros(2),
        "encoder_hidden_states": torch.zeros(2, 77, 64, dtype=torch.bfloat16),
        "added_cond_kwargs": {
            "text_embeds": torch.zeros(2, 32, dtype=torch.bfloat16),
            "time_ids": torch.zeros(2, 6, dtype=torch.bfloat16),
            "image_embeds": [torch.zeros(2, 1, WIDTH, dtype=torch.bfloat16)],
        },
    }
    recorder.module(**call, return_dict=False)
    (recorded,) = recorder.calls["unet"]
    module = recorded.module()
    assert module_state(module) == recorded.state
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_adapter_is_refused_when_the_class_takes_none() -> None:
    with pytest.raises(RecipeError, match="Linear takes no IP-Adapter"):
        add_ip_adapters(nn.Linear(2, 2), (WIDTH,), "float32")
