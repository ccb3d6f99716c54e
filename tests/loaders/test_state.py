from __future__ import annotations

import json

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend
from torch import nn

from aotbuild.loaders.snapshot import Snapshot
from aotbuild.loaders.state import backend_state, current_backend, identify, module_state

from . import nets


def on_meta(module: nn.Module) -> nn.Module:
    with torch.device("meta"):
        return type(module).from_config(module.config).eval()  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [nets.unet, nets.vae])
def test_a_stock_module_on_meta_is_as_the_real_one(make: type) -> None:
    real = make()
    stock = on_meta(real)
    assert module_state(stock) == module_state(real)
    assert identify(stock) == identify(real)
    assert json.loads(json.dumps(module_state(real))) == module_state(real)


def test_a_saved_module_is_as_it_was(tmp_path: object) -> None:
    real = nets.unet()
    real.save_pretrained(str(tmp_path))
    again = UNet2DConditionModel.from_pretrained(str(tmp_path))
    assert identify(again) == identify(real)
    assert module_state(again) == module_state(real)


def test_identify_keeps_no_private_keys_and_no_tuples() -> None:
    identity = identify(nets.net())
    assert identity.config == {"width": 16, "sizes": [1, 2]}
    assert identity.class_name == "Net"


def test_identify_depends_on_the_source_of_the_modules_classes() -> None:
    plain, ours = nn.Sequential(nn.Linear(1, 1)), nn.Sequential(nets.net())
    assert identify(plain).source_sha256 != identify(ours).source_sha256


def test_module_state_is_plain_for_a_stock_unet() -> None:
    state = module_state(nets.unet())
    assert state["training"] is False
    assert state["processors"] == "AttnProcessor2_0"
    assert [state[k] for k in ("freeu", "fused", "hooks", "adapters")] == [{}, [], [], []]


def test_module_state_holds_the_vaes_switches() -> None:
    switches = module_state(AutoencoderKL())["switches"]
    assert switches["use_tiling"] is False
    assert "tile_overlap_factor" in switches


def test_module_state_names_the_attention_backend_when_it_is_not_the_stock_one() -> None:
    flux = nets.flux()
    stock = module_state(flux)
    assert "attention" not in stock
    seen = Snapshot(flux)
    with attention_backend("_native_math"):
        assert module_state(flux)["attention"] == "_native_math"
        assert not seen.matches()
        assert module_state(nets.unet()).get("attention") is None  # it doesn't ask the dispatcher
    assert seen.matches()
    for processor in flux.attn_processors.values():
        processor._attention_backend = AttentionBackendName("native")
    assert not seen.matches()
    assert module_state(flux) == stock
    seen = Snapshot(flux)
    processor._attention_backend = AttentionBackendName("flex")
    assert not seen.matches()
    assert sorted(module_state(flux)["attention"].values()) == ["flex", "native"]


def test_a_snapshot_matches_until_something_changes() -> None:
    module = nets.unet()
    snapshot = Snapshot(module)
    assert snapshot.matches()
    module.mid_block.attentions[0].training = True
    assert snapshot.matches()  # nothing there depends on it
    del module.mid_block.resnets[0]
    assert not snapshot.matches()


def test_backend_state_is_recorded_only_where_a_switch_matters() -> None:
    assert backend_state("cpu", "fp32") == backend_state("cuda", "bf16") == {}
    expected = backend_state("cuda", "tf32")
    assert expected == {"matmul_tf32": True, "cudnn_enabled": True}
    assert set(current_backend(expected)) == set(expected)
