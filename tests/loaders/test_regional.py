"""Artifacts of a repeated block: bound to each block that they fit, whatever surrounds them."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotbuild
from aotbuild.errors import LoadError, NoArtifactError, ReleasedError, SignatureMismatch, UsageError
from aotbuild.loaders import runner
from aotbuild.loaders.blocks import identify_block

from . import nets, quantized
from .conftest import Kit

LABEL = "stack.Net"


class Stack(nn.Module):
    """Three blocks of one class, each with weights of its own, and a layer around them."""

    def __init__(self, blocks: list[Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        for block in self.blocks:
            sample = block(sample, timestep, return_dict=False)[0] * self.scale
        return sample


class Doubled(nets.Net):
    """A patch of the kind that is set as `__class__`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (super().forward(*args, **kwargs)[0] * 2,)


def stack(make: Any = nets.net) -> Any:
    return Stack([make(seed) for seed in (3, 4, 5)]).eval()


def call() -> dict[str, Any]:
    made = nets.call()
    return {"sample": made["sample"], "timestep": made["timestep"]}


def regional(block: nn.Module) -> Any:
    def change(fields: dict[str, Any]) -> None:
        fields.update(scope="regional", module=identify_block(block))

    return change


def write(kit: Kit, component: str = "stack", **others: Any) -> Any:
    """An artifact of one `Net`, as a build at the regional scope makes it."""
    change = regional(nets.net())
    return kit.net(component=f"{component}.Net", change=change, **others)


def write_int8(kit: Kit) -> Any:
    return quantized.write(kit, component="stack.Stock", change=regional(quantized.stock()))


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def served(loaded: aotbuild.Loaded, label: str = LABEL) -> tuple[int, dict[str, int]]:
    metrics = loaded.metrics()[label]
    return sum(metrics["hits"].values()), metrics["fallbacks"]


def test_every_block_is_served_with_its_own_weights_when_one_artifact_fits_all(kit: Kit) -> None:
    manifest = write(kit)
    module = stack()
    expected = module(**call())
    before = set(runner._libraries)
    loaded = kit.load(stack=module)
    close(module(**call()), expected)
    assert served(loaded) == (3, {})
    assert loaded.metrics()[LABEL]["blocks"] == 3
    assert set(runner._libraries) - before <= {manifest.library.sha256}
    assert loaded.report().count(manifest.key[:12]) == 1
    assert "swapped in 3 blocks" in loaded.report()


def test_restore_leaves_every_block_as_it_was(kit: Kit) -> None:
    write(kit)
    module = stack()
    expected = module(**call())
    before = [dict(vars(block)) for block in module.blocks]
    loaded = kit.load(stack=module)
    loaded.restore()
    assert [vars(block) for block in module.blocks] == before
    assert torch.equal(module(**call()), expected)
    assert "restored in 3 blocks" in loaded.report()


def test_new_weights_are_bound_when_one_block_gets_some(kit: Kit) -> None:
    write(kit)
    module, other = stack(), nets.net(9)
    loaded = kit.load(stack=module)
    module(**call())
    module.blocks[1].load_state_dict(other.state_dict(), assign=True)
    module.blocks[2].half().float()
    close(module(**call()), copy.deepcopy(module)(**call()))
    assert served(loaded) == (6, {})


def test_only_the_changed_block_runs_eagerly_when_its_state_changes(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    write(kit)
    module = stack()
    expected = module(**call())
    loaded = kit.load(stack=module)
    module.blocks[1].register_forward_hook(lambda *_: None)
    close(module(**call()), expected)
    assert served(loaded) == (2, {"state": 1})
    module.scale.data.mul_(2)  # outside of the blocks: nobody's business
    module.use_tiling = True
    module(**call())
    assert served(loaded) == (4, {"state": 2})


def test_the_same_miss_is_said_once_when_every_block_has_it(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    write(kit)
    module = stack()
    loaded = kit.load(stack=module)
    with caplog.at_level(logging.WARNING):
        module(**{**call(), "sample": torch.zeros(2, 4, 8, 8)})
    assert served(loaded) == (0, {"call": 3})
    (record,) = caplog.records
    assert "stack.Net runs eagerly: sample is 2x4x8x8" in record.getMessage()
    assert "--scope regional" in record.getMessage()


def test_a_patched_blocks_own_method_runs_when_its_class_was_changed(kit: Kit) -> None:
    write(kit)
    module = stack()
    loaded = kit.load(stack=module)
    module.blocks[1].__class__ = Doubled
    close(module(**call()), copy.deepcopy(module)(**call()))
    assert served(loaded)[1] == {"state": 1}


def test_a_hooked_block_is_left_alone_and_named_when_others_fit(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    write(kit)
    module = stack()
    module.blocks[1].register_forward_pre_hook(lambda *_: None)
    with caplog.at_level(logging.WARNING):
        loaded = kit.load(stack=module)
    assert "No artifact serves all blocks of stack.Net" in caplog.text
    assert "1 of 3 blocks (blocks.1): The block has a hook" in loaded.report()
    module(**call())
    assert served(loaded) == (2, {})


def test_loading_fails_when_a_block_is_left_and_no_fallback_is_wanted(kit: Kit) -> None:
    write(kit)
    module = stack()
    module.blocks[2].register_forward_pre_hook(lambda *_: None)
    with pytest.raises(NoArtifactError, match=r"all blocks of stack\.Net.*\n.*1 of 3 blocks"):
        kit.load(stack=module, fallback="error")
    assert not any("forward" in vars(block) for block in module.blocks)


def test_an_uncovered_call_raises_when_no_fallback_is_wanted(kit: Kit) -> None:
    write(kit)
    module = stack()
    kit.load(stack=module, fallback="error")
    module(**call())
    with pytest.raises(SignatureMismatch, match="sample is 2x4x8x8"):
        module(**{**call(), "sample": torch.zeros(2, 4, 8, 8)})


def test_blocks_of_other_weights_are_refused_by_shape(kit: Kit) -> None:
    write(kit)
    module = stack()
    for block in module.blocks:
        block.embed = nn.Linear(2, 16)
    loaded = kit.load(stack=module)
    assert loaded.metrics() == {}
    assert "weights.embed.weight.1 is 2 (built with 1)" in loaded.report()


def test_the_whole_is_preferred_when_artifacts_of_both_scopes_fit(kit: Kit) -> None:
    kit.net()
    write(kit, "net")
    module = nets.net()
    loaded = kit.load(net=module)
    assert set(loaded.metrics()) == {"net"}
    assert "net is served whole; scope='regional' would use it" in loaded.report()


@pytest.mark.parametrize(("scope", "label"), [("regional", "net.Net"), ("full", "net")])
def test_the_scope_that_was_asked_for_serves_when_artifacts_of_both_fit(
    kit: Kit, scope: str, label: str
) -> None:
    kit.net()
    write(kit, "net")
    module = nets.net()
    expected = module(**nets.call(return_dict=False))[0]
    loaded = kit.load(net=module, scope=scope, fallback="error")
    close(module(**nets.call(return_dict=False))[0], expected)
    assert set(loaded.metrics()) == {label}


def test_blocks_serve_when_the_whole_does_not_fit(kit: Kit) -> None:
    kit.net(change=lambda fields: fields.update(state={}))
    write(kit, "net")
    loaded = kit.load(net=nets.net(), fallback="error")
    assert set(loaded.metrics()) == {"net.Net"}


def test_an_unknown_scope_is_refused(kit: Kit) -> None:
    with pytest.raises(UsageError, match="'full' or 'regional'"):
        kit.load(net=nets.net(), scope="whole")


def test_loading_twice_is_refused_when_blocks_are_swapped(kit: Kit) -> None:
    write(kit)
    module = stack()
    kit.load(stack=module)
    with pytest.raises(LoadError, match="stack's Net is swapped already"):
        kit.load(stack=module)


def test_a_copy_runs_on_its_own_weights_when_blocks_are_swapped(kit: Kit) -> None:
    write(kit)
    module = stack()
    loaded = kit.load(stack=module)
    copied = copy.deepcopy(module)
    expected = copied(**call())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(copied(**call()), expected)
    assert served(loaded) == (0, {})
    with pytest.raises(LoadError, match="can't be pickled"):
        pickle.dumps(module)


def test_a_block_that_stands_twice_is_served_at_both_places(kit: Kit) -> None:
    write(kit)
    shared = nets.net(3)
    module = Stack([shared, nets.net(4), shared]).eval()
    expected = module(**call())
    loaded = kit.load(stack=module)
    close(module(**call()), expected)
    assert loaded.metrics()[LABEL]["blocks"] == 2
    assert served(loaded) == (3, {})


def test_weights_are_freed_block_by_block_when_they_are_int8_and_eager_never_runs(
    kit: Kit,
) -> None:
    write_int8(kit)
    module = stack(quantized.stock)
    expected = module(**call())
    loaded = kit.load(stack=module, fallback="error")
    kit.loaded.clear()
    assert all(block.to_q.weight.numel() == 0 for block in module.blocks)
    ours = module(**call())
    assert (ours - expected).norm() / expected.norm() < 0.05
    assert loaded.metrics()["stack.Stock"]["freed_bytes"] == 3 * 64 * 16 * 4
    with pytest.raises(ReleasedError, match=r"weights of stack\.blocks\.0 were freed"):
        loaded.restore()
    values = stack(quantized.stock).state_dict()
    module.load_state_dict({**values, "blocks.0.to_q.weight": values["blocks.1.to_q.weight"]})
    assert not torch.equal(module(**call()), ours)


def test_a_weight_that_another_block_shares_is_kept_when_others_are_freed(kit: Kit) -> None:
    write_int8(kit)
    module = stack(quantized.stock)
    module.blocks[1].to_q.weight = module.blocks[0].to_q.weight
    kit.load(stack=module, fallback="error")
    kit.loaded.clear()
    kept = [block.to_q.weight.numel() > 0 for block in module.blocks]
    assert kept == [True, True, False]
    assert all(block.to_k.weight.numel() == 0 for block in module.blocks)


def test_first_call_of_each_block_is_compared_when_nothing_vouches_for_the_artifact(
    kit: Kit,
) -> None:
    write(kit, verified=False)
    module = stack()
    expected = module(**call())
    loaded = kit.load(stack=module)
    assert "compares its first call" in loaded.report()
    assert torch.equal(module(**call()), expected)
    assert "first call agreed with eager" in loaded.report()


def test_an_artifact_is_turned_down_when_the_component_has_no_such_block(kit: Kit) -> None:
    write(kit, "unet")
    module = nets.unet()
    loaded = kit.load(unet=module)
    assert "unet has no block of the class Net" in loaded.report()


def test_artifacts_of_blocks_are_turned_down_when_there_are_no_weights(kit: Kit) -> None:
    write(kit)
    with pytest.raises(NoArtifactError, match="The block has no weights"):
        kit.load(stack=stack().to("meta"))
