from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import aotbuild
from aotbuild.errors import SignatureMismatch
from aotbuild.loaders.constants import Binding

from . import nets
from .conftest import Kit


def served(loaded: aotbuild.Loaded, unit: str = "net") -> tuple[int, dict[str, int]]:
    metrics = loaded.metrics()[unit]
    return sum(metrics["hits"].values()), metrics["fallbacks"]


def assert_eagers(module: nn.Module, exact: bool = False) -> None:
    call = nets.call(return_dict=False)
    expected = type(module).forward(module, **call)[0]
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(module(**call)[0], expected, **tolerance)


def data_assigned(module: Any) -> None:
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)


def loaded_in_place(module: Any) -> None:
    module.load_state_dict(nets.net(seed=9).state_dict())


def loaded_by_assignment(module: Any) -> None:
    module.load_state_dict(nets.net(seed=9).state_dict(), assign=True)


def replaced(module: Any) -> None:
    module.to_q.weight = nn.Parameter(torch.randn(16, 16))


def attribute_replaced(module: Any) -> None:
    module.rope.angles = torch.randn(1, 16, 1, 1)


def merged_in_place(module: Any) -> None:
    module.to_q.weight.data += 0.5
    module.conv_in.weight.data.mul_(2)


def buffer_replaced(module: Any) -> None:
    module.kept = torch.rand(16)


def to_channels_last(module: Any) -> None:
    module.to(memory_format=torch.channels_last)


def misaligned(module: Any) -> None:
    module.to_q.bias.data = torch.randn(17)[1:]


REBOUND: dict[str, Callable[[Any], Any]] = {
    "half and back": lambda m: m.half().float(),
    "to and back": lambda m: m.to(torch.float64).to(torch.float32),
    "p.data =": data_assigned,
    "load_state_dict": loaded_in_place,
    "load_state_dict(assign=True)": loaded_by_assignment,
    "a parameter replaced": replaced,
    "a buffer replaced": buffer_replaced,
    "an attribute replaced": attribute_replaced,
    "merged in place": merged_in_place,
    "channels_last": to_channels_last,
    "a misaligned weight": misaligned,
    "an attribute that hides a parameter": lambda m: vars(m.to_k).update(weight=torch.ones(16, 16)),
}

UNFIT: dict[str, Callable[[Any], Any]] = {
    "a transposed matrix at the same address": lambda m: setattr(
        m.to_k.weight, "data", m.to_k.weight.data.t()
    ),
    "one weight cast": lambda m: setattr(m, "lost", m.lost.double().to(torch.bfloat16)),
    "a negated view": lambda m: setattr(
        m.to_k, "weight", nn.Parameter(torch._neg_view(m.to_k.weight.detach()))
    ),
    "a zero tensor": lambda m: setattr(m.to_k.weight, "data", torch._efficientzerotensor(16, 16)),
    "another class at the same address": lambda m: setattr(m.to_k.weight, "__class__", Doubled),
}


class Doubled(nn.Parameter):
    """A weight whose products come out twice as large."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = super().__torch_function__(func, types, args, kwargs or {})
        return answer * 2 if func is nn.functional.linear else answer


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("what", REBOUND)
def test_weights_are_bound_anew_when_they_changed_by(kit: Kit, what: str, fused: bool) -> None:
    (kit.fused_net if fused else kit.net)()
    module = nets.net()
    loaded = kit.load(net=module, fallback="error")
    assert_eagers(module)
    REBOUND[what](module)
    junk = [torch.full((16, 16), 7.0) for _ in range(64)]
    assert_eagers(module)
    assert_eagers(module)
    assert served(loaded) == (3, {})
    del junk


@pytest.mark.parametrize("what", UNFIT)
def test_eager_serves_when_weights_became_unfit_by(kit: Kit, what: str) -> None:
    kit.net()
    module = nets.net()
    loaded = kit.load(net=module)
    UNFIT[what](module)
    assert_eagers(module, exact=True)
    assert_eagers(module, exact=True)
    assert served(loaded) == (0, {"weights": 2})
    assert "the weights don't fit" in loaded.report()


@pytest.mark.parametrize(("size", "words"), [(0, "has no memory"), (16, "needs 64 bytes")])
def test_compiled_code_never_reads_a_weight_whose_memory_was_taken_away(
    kit: Kit, size: int, words: str
) -> None:
    kit.net()
    module = nets.net()
    kit.load(net=module, fallback="error")
    module.kept.untyped_storage().resize_(size)
    with pytest.raises(SignatureMismatch, match=words):
        module(**nets.call(return_dict=False))


def test_a_part_of_a_fused_weight_is_fused_anew_when_it_was_transposed_where_it_lies(
    kit: Kit,
) -> None:
    kit.fused_net()
    module = nets.net()
    loaded = kit.load(net=module, fallback="error")
    module.to_q.weight.data = module.to_q.weight.data.t()
    assert_eagers(module)
    assert served(loaded)[0] == 1


def test_weights_are_judged_again_when_another_thread_changes_one_while_they_are_bound(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.net()
    module = nets.net()
    loaded = kit.load(net=module)
    assign = Binding._assign

    def meanwhile(binding: Binding, slots: Any) -> None:
        monkeypatch.setattr(Binding, "_assign", assign)
        module.to_k.weight.data = module.to_k.weight.data.t()
        assign(binding, slots)

    monkeypatch.setattr(Binding, "_assign", meanwhile)
    module.to_q.bias.data = torch.randn(16)
    module(**nets.call(return_dict=False))  # the change happens in here
    assert_eagers(module, exact=True)
    assert served(loaded) == (0, {"weights": 2})


def test_a_half_module_is_eagers_and_the_artifacts_again_when_cast_back(kit: Kit) -> None:
    kit.net()
    module, call = nets.net(), nets.call(return_dict=False)
    loaded = kit.load(net=module)
    module.double()
    with pytest.raises(RuntimeError):
        module(**call)
    module.float()
    assert_eagers(module)
    assert served(loaded)[0] == 1


def test_an_fp16_vae_is_bound_at_each_of_its_upcasts(kit: Kit) -> None:
    kit.vae(precision="float16")
    module = nets.vae().half()
    loaded = kit.load(vae=module, fallback="error")
    assert "waiting for its weights" in loaded.report()
    for seed in range(5):
        torch.manual_seed(seed)
        z = torch.randn(1, 4, 8, 8)
        module.to(torch.float32)
        expected = type(module).decode(module, z, return_dict=False)[0]
        answer = module.decode(z, return_dict=False)[0]
        torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
        module.to(torch.float16)
    assert served(loaded, "vae.decode") == (5, {})


def test_restore_gives_fused_tensors_back_bit_equal(kit: Kit) -> None:
    kit.fused_net()
    module = nets.net(seed=4)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    loaded = kit.load(net=module, fallback="error")
    shared = {module.get_parameter(f"to_{x}.weight").untyped_storage().data_ptr() for x in "qkv"}
    assert len(shared) == 1
    assert loaded.metrics()["net"]["derived_bytes"] == 3 * (16 * 16 + 16) * 4
    assert "laid out anew" in loaded.report()
    assert_eagers(module)
    module.to_q.weight.data.mul_(2)
    assert_eagers(module)
    loaded.restore()
    before["to_q.weight"] *= 2
    after = module.state_dict()
    assert all(torch.equal(after[n], t) for n, t in before.items())
    shared = {module.get_parameter(f"to_{x}.weight").untyped_storage().data_ptr() for x in "qkv"}
    assert len(shared) == 3


def test_a_convolution_in_another_layout_is_converted_and_given_back(kit: Kit) -> None:
    kit.net()
    module = nets.net().to(memory_format=torch.channels_last)
    stride = module.conv_in.weight.stride()
    before = module.conv_in.weight.clone()
    loaded = kit.load(net=module, fallback="error")
    assert module.conv_in.weight.is_contiguous()
    assert loaded.metrics()["net"]["derived_bytes"] > 0
    assert_eagers(module)
    loaded.restore()
    assert module.conv_in.weight.stride() == stride
    assert torch.equal(module.conv_in.weight, before)


def test_two_artifacts_of_one_unit_fuse_and_convert_once(kit: Kit) -> None:
    kit.fused_net()
    kit.fused_net(change=lambda f: f.update(provenance={"another": True}), verified=False)
    module = nets.net().to(memory_format=torch.channels_last)
    loaded = kit.load(net=module, fallback="error", self_check=False)
    assert len(loaded.to_json()["units"]["net"]["artifacts"]) == 2
    convolutions = (module.conv_in.weight.numel() + module.conv_out.weight.numel()) * 4
    assert loaded.metrics()["net"]["derived_bytes"] == 3 * (16 * 16 + 16) * 4 + convolutions
    assert_eagers(module)


def test_in_place_changes_are_seen_at_once_when_an_artifact_shares_the_memory(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    kit.load(net=module, fallback="error")
    for name, parameter in module.named_parameters():
        parameter.data.add_(0.01 * len(name))
        assert_eagers(module)


def test_every_constant_is_read_from_the_module_and_none_from_the_code(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    kit.load(net=module, fallback="error")
    call = nets.call(return_dict=False)
    tensors = [*module.parameters(), *module.buffers(), module.rope.angles]
    for tensor in tensors:
        before = module(**call)[0]
        tensor.data.mul_(1.5).add_(0.1)
        # A shared shift of all keys changes no softmax, hence the comparison with eager.
        assert_eagers(module)
        if tensor is not module.to_k.bias:
            assert not torch.equal(module(**call)[0], before)
