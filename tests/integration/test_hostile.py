"""What people do to a loaded pipeline: the answer is eager's own, whoever computes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import aotbuild
from aotbuild.build.examples import example_call
from aotbuild.build.modules import build_module, fill_random
from aotbuild.recipe import load_configs

Change = Callable[[Any], None]


def other_unet() -> nn.Module:
    module = build_module(load_configs("tiny")["unet"], "float32")
    fill_random(module, 9)
    return module


def square(module: nn.Module) -> nn.Linear:
    found = (m for m in module.modules() if isinstance(m, nn.Linear))
    return next(m for m in found if m.in_features == m.out_features)


def convolution(module: nn.Module) -> nn.Conv2d:
    found = (m for m in module.modules() if isinstance(m, nn.Conv2d))
    return next(m for m in found if m.in_channels == m.out_channels and m.kernel_size == (3, 3))


def replace_layer(u: Any) -> None:
    layer = copy.deepcopy(u.conv_in)
    nn.init.normal_(layer.weight)
    u.conv_in = layer


def replace_block(u: Any) -> None:
    u.mid_block = other_unet().mid_block


def transpose(layer: Any, *dims: int) -> None:
    layer.weight.data = layer.weight.data.transpose(*dims)


def pad_circularly(u: Any) -> None:
    for layer in (m for m in u.modules() if isinstance(m, nn.Conv2d)):
        layer.padding_mode = "circular"
        layer._reversed_padding_repeated_twice = [p for p in layer.padding for _ in range(2)]


def patch_class(u: Any) -> None:
    block = u.mid_block.resnets[0]
    body = {"forward": lambda self, x, *_: x * 0.5}
    block.__class__ = type(type(block).__name__, (type(block),), body)


def twin_processor(u: Any) -> None:
    from diffusers.models.attention_processor import AttnProcessor2_0

    class Twin(AttnProcessor2_0):
        def __call__(self, attn: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(attn, hidden_states * 0.5, *args, **kwargs)

    Twin.__name__ = "AttnProcessor2_0"
    u.set_attn_processor(Twin())


def override_method(u: Any) -> None:
    u.get_time_embed = lambda sample, timestep: torch.zeros(sample.shape[0], 32)


def assign(u: Any) -> None:
    u.load_state_dict(other_unet().state_dict(), assign=True)


CHANGES: dict[str, Change] = {
    "a layer is another of its class": replace_layer,
    "a block is another of its class": replace_block,
    "a square weight is transposed": lambda u: transpose(square(u), 0, 1),
    "a kernel is transposed": lambda u: transpose(convolution(u), 2, 3),
    "a convolution's channels are transposed": lambda u: transpose(convolution(u), 0, 1),
    "convolutions pad circularly": pad_circularly,
    "a block's class is patched": patch_class,
    "a processor has a twin's name": twin_processor,
    "a method is overridden": override_method,
    "weights are assigned": assign,
}


def call_of(loaded: aotbuild.Loaded) -> dict[str, Any]:
    unit = next(u for u in loaded._units if u.name == "unet")
    manifest = unit.dispatcher.artifacts[-1].manifest
    values = manifest.checks["example_values"]
    return example_call(manifest.signature, values, {}, device="cpu", seed=0)


def check(u: Any, call: dict[str, Any]) -> None:
    with torch.no_grad():
        ours, eager = u(**call)[0], type(u).forward(u, **call)[0]
    assert ((ours - eager).norm() / eager.norm()).item() < 1e-5


@pytest.mark.parametrize("what", CHANGES)
def test_answer_is_eagers_when(pipeline: Any, loaded: aotbuild.Loaded, what: str) -> None:
    call = call_of(loaded)
    check(pipeline.unet, call)
    CHANGES[what](pipeline.unet)
    check(pipeline.unet, call)
    check(pipeline.unet, call)


def test_assigned_weights_are_served_by_the_artifact_again(
    pipeline: Any, loaded: aotbuild.Loaded
) -> None:
    call = call_of(loaded)
    check(pipeline.unet, call)
    assign(pipeline.unet)
    check(pipeline.unet, call)
    assert loaded.metrics()["unet"]["fallbacks"] == {}


def test_refresh_looks_at_what_was_changed_in_place(pipeline: Any, loaded: aotbuild.Loaded) -> None:
    call = call_of(loaded)
    check(pipeline.unet, call)
    pipeline.unet.mid_block.resnets[0].output_scale_factor = 3.0
    loaded.refresh()
    check(pipeline.unet, call)
    assert "state" in loaded.metrics()["unet"]["fallbacks"]


def test_eager_serves_when_a_hook_is_on_all_modules(pipeline: Any, loaded: aotbuild.Loaded) -> None:
    call = call_of(loaded)
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, _, out: out * 0.9 if isinstance(m, nn.Conv2d) else None
    )
    try:
        check(pipeline.unet, call)
    finally:
        handle.remove()
    assert "mode" in loaded.metrics()["unet"]["fallbacks"]


def test_eager_serves_when_a_transform_or_a_tensor_without_memory_comes(
    pipeline: Any, loaded: aotbuild.Loaded
) -> None:
    call = call_of(loaded)
    sample = call.pop("sample")
    u = pipeline.unet

    def run(x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = u(sample=x, **call)[0]
        return answer

    with torch.no_grad():
        expected = type(u).forward(u, sample=sample, **call)[0]
        found = torch.func.functionalize(run)(sample)
        assert ((found - expected).norm() / expected.norm()).item() < 1e-5
        zeros = torch._efficientzerotensor(sample.shape)
        expected = type(u).forward(u, sample=torch.zeros(sample.shape), **call)[0]
        assert ((run(zeros) - expected).norm() / expected.norm()).item() < 1e-5
