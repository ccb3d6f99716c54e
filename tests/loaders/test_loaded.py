from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch

from aotbuild.errors import ReleasedError

from . import nets
from .conftest import Kit

GROWTH_BYTES = 5 << 20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_restore_leaves_the_pipeline_as_it_was(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    attributes, expected = dict(vars(module)), module(**call)[0]
    parameters = {n: (p, p.data_ptr()) for n, p in module.named_parameters()}
    loaded = kit.load(unet=module)
    module(**call)
    loaded.restore()
    loaded.restore()
    assert vars(module) == attributes
    assert all((p, p.data_ptr()) == parameters[n] for n, p in module.named_parameters())
    assert torch.equal(module(**call)[0], expected)


def test_refresh_raises_when_restored(kit: Kit) -> None:
    kit.net()
    loaded = kit.load(net=nets.net())
    loaded.refresh()
    loaded.restore()
    with pytest.raises(ReleasedError, match=r"aotbuild\.load again"):
        loaded.refresh()
    assert "(restored)" in loaded.report()
    assert "given back by restore()" in loaded.report()


def test_a_method_kept_from_before_restore_runs_eagerly(kit: Kit) -> None:
    kit.net()
    module, call = nets.net(), nets.call(return_dict=False)
    expected = module(**call)[0]
    loaded = kit.load(net=module)
    kept = module.forward
    loaded.restore()
    assert torch.equal(kept(**call)[0], expected)


def test_restore_leaves_a_method_that_somebody_else_set(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    loaded = kit.load(net=module)
    inner = module.forward
    module.forward = lambda *a, **k: inner(*a, **k)
    theirs = module.forward
    loaded.restore()
    assert module.forward is theirs
    assert torch.is_tensor(module(**nets.call(return_dict=False))[0])


@pytest.mark.parametrize("fused", [False, True])
def test_memory_doesnt_grow_over_100_refreshes(kit: Kit, fused: bool) -> None:
    kit.fused_net() if fused else kit.unet()
    module = nets.net() if fused else nets.unet()
    loaded = kit.load(**{"net" if fused else "unet": module}, fallback="error")
    for _ in range(10):
        loaded.refresh()
    before = resident_bytes()
    for _ in range(100):
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()
        loaded.refresh()
    assert resident_bytes() - before <= GROWTH_BYTES


def test_memory_doesnt_grow_over_100_rounds_of_load_and_restore(kit: Kit) -> None:
    kit.unet()
    module = nets.unet()
    for n in range(110):
        if n == 10:
            before = resident_bytes()
        kit.load(unet=module).restore()
        kit.loaded.clear()
    assert resident_bytes() - before <= GROWTH_BYTES


def test_the_report_is_json_and_text_of_one_thing(kit: Kit) -> None:
    manifest = kit.net()
    kit.net(change=lambda f: f.update(precision="bfloat16"), verified=False)
    module = nets.net()
    loaded = kit.load(net=module)
    module(**nets.call(return_dict=False))
    module(**nets.call(size=12, return_dict=False))
    document = json.loads(json.dumps(loaded.to_json()))
    (artifact,) = document["units"]["net"]["artifacts"]
    assert artifact["key"] == manifest.key
    assert artifact["hits"] == 1
    assert document["units"]["net"]["fallbacks"] == {"call": 1}
    (rejected,) = document["rejected"]
    assert "bfloat16" in rejected["reasons"][0]
    report = loaded.report()
    for words in (manifest.key[:12], "exact", "1 calls", "1 eager (call)", rejected["reasons"][0]):
        assert words in report
    assert artifact["load_s"] + artifact["bind_s"] > 0
