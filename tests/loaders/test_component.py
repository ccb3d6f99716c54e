from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor
from torch import nn

from aotbuild.errors import LoadError, SignatureMismatch
from aotbuild.loaders.component import Gate, precision_of, state_reason

from . import nets
from .conftest import Kit


class ScaledProcessor(AttnProcessor):
    """Stands for IP-Adapter's: a class of its own, with a scale that a caller changes."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = [scale]


def use_plain(module: Any) -> None:
    module.set_attn_processor(AttnProcessor())


def use_scaled(module: Any) -> None:
    module.set_attn_processor(ScaledProcessor(0.5))


def hook_a_child(module: Any) -> None:
    module.conv_in.register_forward_hook(lambda m, a, out: out * 2)


def override_a_child(module: Any) -> None:
    inner = module.conv_in.forward
    module.conv_in.forward = lambda x: inner(x) * 2


def replace_a_child(module: Any) -> None:
    module.conv_out = nn.Sequential(module.conv_out, nn.Tanh())


def enable_cache(module: Any) -> None:
    from diffusers import FirstBlockCacheConfig  # noqa: F401 (what real callers import)
    from diffusers.hooks import HookRegistry, ModelHook

    class Doubling(ModelHook):
        def new_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            return self.fn_ref.original_forward(*args, **kwargs) * 2

    HookRegistry.check_if_exists_or_initialize(module.conv_in).register_hook(Doubling(), "double")


class Doubled(nn.Conv2d):
    """What a patch puts in place of a layer's class."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "FreeU": (lambda m: m.enable_freeu(s1=0.9, s2=0.2, b1=1.5, b2=1.6), "freeu"),
    "other processors": (use_plain, "processors"),
    "a processor with a scale": (use_scaled, "processors"),
    "fused projections": (lambda m: m.fuse_qkv_projections(), "processors"),
    "training mode": (lambda m: m.train(), "training"),
    "a hook on a child": (hook_a_child, "hooks"),
    "an overridden forward": (override_a_child, "hooks"),
    "a replaced child": (replace_a_child, "modules"),
    "a cache hook": (enable_cache, "hooks"),
    "another class of a layer": (lambda m: setattr(m.conv_in, "__class__", Doubled), "modules"),
    "another switch": (lambda m: setattr(m, "num_upsamplers", 7), "switches"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_eager_serves_with_the_reason_when_this_changes_after_loading(kit: Kit, what: str) -> None:
    change, words = CHANGES[what]
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    module(**call)
    change(module)
    expected = type(module).forward(module, **call)[0]
    for _ in range(2):
        torch.testing.assert_close(module(**call)[0], expected, rtol=0, atol=0)
    served = loaded.metrics()["unet"]
    assert sum(served["hits"].values()) == 1
    assert served["fallbacks"] == {"state": 2}
    assert words in loaded.report()


@pytest.mark.parametrize("first", [True, False])
def test_artifact_serves_when_the_pipeline_keeps_an_empty_registry_of_hooks(
    kit: Kit, first: bool
) -> None:
    from diffusers.hooks import HookRegistry

    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    if first:
        HookRegistry.check_if_exists_or_initialize(module)
    loaded = kit.load(unet=module, fallback="error")
    HookRegistry.check_if_exists_or_initialize(module)  # as `cache_context` does
    module(**call)
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 1


def test_eager_serves_when_a_hook_comes_into_a_registry_that_was_empty(kit: Kit) -> None:
    from diffusers.hooks import HookRegistry

    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    HookRegistry.check_if_exists_or_initialize(module.conv_in)
    loaded = kit.load(unet=module)
    enable_cache(module)
    module(**call)
    module.conv_in._diffusers_hook.remove_hook("double")
    module(**call)  # a `forward` is left behind, and would hide the next one
    enable_cache(module)
    module(**call)
    assert loaded.metrics()["unet"]["fallbacks"] == {"state": 3}


def test_freeu_factors_and_scales_are_compared_when_they_change_in_place(kit: Kit) -> None:
    kit.unet(change=lambda fields: fields.update(state=freeu_state(1.5)))
    module, call = nets.unet(), nets.unet_call()
    module.enable_freeu(s1=0.9, s2=0.2, b1=1.5, b2=1.6)
    loaded = kit.load(unet=module, fallback="error")
    module(**call)
    module.enable_freeu(s1=0.9, s2=0.2, b1=1.1, b2=1.6)
    with pytest.raises(SignatureMismatch, match="freeu"):
        module(**call)
    module.enable_freeu(s1=0.9, s2=0.2, b1=1.5, b2=1.6)
    module(**call)
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 2


def freeu_state(b1: float) -> dict[str, Any]:
    from aotbuild.loaders.state import module_state

    module = nets.unet()
    module.enable_freeu(s1=0.9, s2=0.2, b1=b1, b2=1.6)
    return module_state(module)


def test_a_scale_changed_in_place_is_noticed(kit: Kit) -> None:
    from aotbuild.loaders.state import module_state

    module, call = nets.unet(), nets.unet_call()
    use_scaled(module)
    state = module_state(module)
    kit.unet(change=lambda fields: fields.update(state=state, module=identity_of(module)))
    kit.load(unet=module, fallback="error")
    module(**call)
    for processor in module.attn_processors.values():
        processor.scale[0] = 0.7
    with pytest.raises(SignatureMismatch, match=r"0\.7"):
        module(**call)


def identity_of(module: nn.Module) -> Any:
    from aotbuild.loaders.state import identify

    return identify(module)


@pytest.mark.parametrize("switch", ["enable_tiling", "enable_slicing"])
def test_eager_serves_when_the_vaes_switch_is_set_and_the_artifact_after_it_is_unset(
    kit: Kit, switch: str
) -> None:
    kit.vae()
    module, z = nets.vae(), torch.randn(1, 4, 8, 8)
    loaded = kit.load(vae=module)
    getattr(module, switch)()
    expected = copy.deepcopy(module).decode(z, return_dict=False)[0]
    assert torch.equal(module.decode(z, return_dict=False)[0], expected)
    assert loaded.metrics()["vae.decode"]["fallbacks"] == {"state": 1}
    getattr(module, switch.replace("enable", "disable"))()
    module.decode(z, return_dict=False)
    assert sum(loaded.metrics()["vae.decode"]["hits"].values()) == 1


def test_a_change_that_is_undone_is_served_by_the_artifact_again(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    module.train()
    module(**call)
    module.eval()
    module(**call)
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 1


def test_state_reason_names_what_differs_and_counts_the_rest() -> None:
    built = {"a": 1, "b": {"c": True}, "d": [1], "e": "x"}
    here = {"a": 1.0, "b": {"c": False}, "d": [2], "e": "y"}
    reason = state_reason(built, here)
    assert reason is not None
    assert "a is 1.0, built with 1" in reason
    assert "b.c is False, built with True" in reason
    assert reason.endswith("and 1 more")
    assert state_reason(built, dict(built)) is None


def test_state_reason_compares_the_backends_switches_where_they_are_recorded() -> None:
    reason = state_reason({"backend": {"matmul_tf32": True, "cudnn_enabled": False}}, {})
    assert reason is not None
    assert "backend.matmul_tf32 is False, built with True" in reason


def test_precision_is_that_of_most_numbers_when_a_few_are_kept_in_float32() -> None:
    module = nn.Sequential(nn.Linear(8, 8).half(), nn.LayerNorm(8))
    assert precision_of(module) == "float16"
    assert precision_of(nn.Identity()) == "float32"


def test_the_gate_refuses_a_change_when_the_thread_itself_is_in_a_run() -> None:
    gate = Gate()
    gate.enter()
    with pytest.raises(LoadError, match="signal handler"), gate.alone():
        pass
    gate.leave()
    with gate.alone():
        pass


def test_the_gate_lets_a_change_in_only_between_runs() -> None:
    import threading

    gate, order = Gate(), []
    gate.enter()

    def change() -> None:
        with gate.alone():
            order.append("change")

    thread = threading.Thread(target=change)
    thread.start()
    thread.join(0.05)
    order.append("run")
    gate.leave()
    thread.join()
    gate.enter()
    gate.leave()
    assert order == ["run", "change"]
