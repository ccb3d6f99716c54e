from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import aotbuild
from aotbuild.errors import NoArtifactError, UsageError
from aotbuild.loaders import options
from aotbuild.recipe import QUANTIZATIONS

from . import making, quantized
from .conftest import RULES, Kit, net_plan
from .test_load import hits

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INT8_BYTES = 64 * 16 + 64 * 4
"""Of 64 rows of 16, data and scales: q, k, v and the mixing convolution."""


def constants(module: Any, index: int = 0) -> dict[str, torch.Tensor]:
    """What the artifact's code is bound to, by name."""
    found: dict[str, torch.Tensor] = vars(module)["forward"].artifacts[index].binding._aliases
    return found


def error(answer: torch.Tensor, reference: torch.Tensor) -> float:
    return float((answer - reference).norm() / reference.norm())


def eagers(module: Any, **others: Any) -> torch.Tensor:
    answer: torch.Tensor = type(module).forward(module, **quantized.call(**others))[0]
    return answer


@pytest.mark.parametrize("seed", range(5))
def test_one_int8_artifact_serves_any_weights_as_torchao_would(kit: Kit, seed: int) -> None:
    quantized.write(kit)
    module = quantized.stock(seed=20 + seed)
    expected, eager = quantized.torchaos(module)(**quantized.call())[0], eagers(module)
    loaded = kit.load(net=module)
    answer = module(**quantized.call())[0]
    assert hits(loaded) == 1
    assert error(answer, expected) < 5e-3
    assert error(answer, eager) <= 1.1 * error(expected, eager) + 1e-4
    assert not torch.equal(answer, eager)


@pytest.mark.parametrize("dtype", DTYPES)
def test_derived_constants_are_torchaos_bit_for_bit(kit: Kit, dtype: torch.dtype) -> None:
    quantized.write(kit, dtype)
    module = quantized.stock(seed=7, dtype=dtype)
    expected = quantized.torchaos(module)
    loaded = kit.load(net=module)
    bound = constants(module)
    for path in quantized.QUANTIZED:
        weight = expected.get_submodule(path).weight
        assert torch.equal(bound[f"{path}.{quantized.PARAMETRIZED}0"], weight.qdata)
        scale = bound[f"{path}.{quantized.PARAMETRIZED}1"]
        assert torch.equal(scale.flatten(), weight.scale.flatten().float())
    eager = eagers(module, dtype=dtype)
    assert error(module(**quantized.call(dtype=dtype))[0].float(), eager.float()) < 5e-2
    assert hits(loaded) == 1


def in_place(module: Any) -> None:
    module.to_k.weight.mul_(3)


def loaded_in_place(module: Any) -> None:
    module.load_state_dict(quantized.stock(seed=9).state_dict())


def loaded_by_assignment(module: Any) -> None:
    module.load_state_dict(quantized.stock(seed=9).state_dict(), assign=True)


def data_assigned(module: Any) -> None:
    module.mix.weight.data = torch.randn(16, 16, 1, 1)


def transposed(module: Any) -> None:
    module.to_v.weight.data = module.to_v.weight.data.t()


def layer_replaced(module: Any) -> None:
    module.to_q = torch.nn.Linear(16, 16)


def channels_last(module: Any) -> None:
    module.to(memory_format=torch.channels_last)


CHANGES = (
    in_place,
    loaded_in_place,
    loaded_by_assignment,
    data_assigned,
    transposed,
    layer_replaced,
    channels_last,
)
IN_PLACE = (in_place, transposed, channels_last)
"""What can't be done to a weight that is gone."""


@pytest.mark.parametrize(
    ("fallback", "change"),
    [
        *(("eager", change) for change in CHANGES),
        *(("error", change) for change in CHANGES if change not in IN_PLACE),
    ],
)
def test_int8_constants_are_made_anew_when_weights_are(
    kit: Kit, change: Any, fallback: str
) -> None:
    quantized.write(kit)
    module, twin = quantized.stock(), quantized.stock()
    loaded = kit.load(net=module, fallback=fallback)
    before = module(**quantized.call())[0]
    torch.manual_seed(3)
    change(module)
    torch.manual_seed(3)
    change(twin)
    answer = module(**quantized.call())[0]
    assert error(answer, quantized.torchaos(twin)(**quantized.call())[0]) < 5e-3
    assert change is channels_last or not torch.equal(answer, before)
    assert hits(loaded) == 2
    if fallback == "error":
        kit.loaded.clear()
        assert module.to_q.weight.untyped_storage().nbytes() == 0
        assert module.mix.weight.untyped_storage().nbytes() == 0


def test_refresh_makes_int8_constants_anew_when_nothing_counts_the_change(kit: Kit) -> None:
    quantized.write(kit)
    module = quantized.stock()
    loaded = kit.load(net=module)
    module.to_k.weight.data.mul_(3)
    loaded.refresh()
    expected = quantized.torchaos(module)(**quantized.call())[0]
    assert error(module(**quantized.call())[0], expected) < 5e-3


def test_two_artifacts_share_what_is_derived_and_the_report_says_what_it_costs(kit: Kit) -> None:
    quantized.write(kit)
    quantized.write(kit, change=lambda f: f.update(provenance={"another": 1}), verified=False)
    module = quantized.stock()
    loaded = kit.load(net=module, self_check=False)
    one, two = constants(module, 0), constants(module, 1)
    names = [n for n in one if quantized.PARAMETRIZED in n]
    assert len(names) == 4
    assert all(one[n].data_ptr() == two[n].data_ptr() for n in names)
    in_place(module)
    loaded.refresh()
    assert all(one[n].data_ptr() == two[n].data_ptr() for n in names)
    metrics = loaded.metrics()["net"]
    assert (metrics["extra_bytes"], metrics["freed_bytes"]) == (INT8_BYTES, 0)
    assert "0.0 MB of int8 weights beside eager's own" in loaded.report()
    loaded.restore()
    assert loaded.metrics()["net"]["extra_bytes"] == 0


def test_a_1x1_kernel_is_read_where_it_lies(kit: Kit) -> None:
    quantized.write(kit)
    module = quantized.stock().to(memory_format=torch.channels_last)
    kit.load(net=module)
    assert constants(module)["point.weight"].data_ptr() == module.point.weight.data_ptr()
    assert constants(module)["point.weight"].shape == (16, 16)
    module.point.weight.data.mul_(2)
    assert error(module(**quantized.call())[0], eagers(module)) < 5e-2


def test_an_unverified_int8_artifact_passes_its_check_against_unquantized_eager(kit: Kit) -> None:
    quantized.write(kit, verified=False)
    module = quantized.stock()
    loaded = kit.load(net=module)
    assert torch.equal(module(**quantized.call())[0], eagers(module))
    assert "first call agreed with eager" in loaded.report()
    assert not torch.equal(module(**quantized.call())[0], eagers(module))
    assert hits(loaded) == 2


def test_new_memory_at_the_old_address_is_not_taken_for_the_old(kit: Kit) -> None:
    quantized.write(kit)
    module = quantized.stock()
    kit.load(net=module)
    call = quantized.call()
    with torch.no_grad():
        for seed in range(12):
            module(**call)
            values = quantized.stock(seed=seed).mix.weight.detach()
            module.mix.weight.data = torch.empty(0)
            module.mix.weight.data = values.clone()
            expected = quantized.torchaos(copy.deepcopy(module))(**call)[0]
            assert error(module(**call)[0], expected) < 5e-3


def float_twin(kit: Kit, **others: Any) -> Any:
    """A float artifact for the calls that the int8 one serves."""
    module, example = quantized.stock(), quantized.call()
    package = kit.compiled / "float-twin.pt2"
    making.compile_call(module, "forward", example, package)
    signature = making.signature_of(module, "forward", example, RULES)
    plan = net_plan(module)
    return making.write_artifact(kit.store, module, package, signature, plan, **others)


def test_quant_chooses_when_a_folder_has_float_and_int8_artifacts(kit: Kit) -> None:
    ours, theirs = quantized.write(kit), float_twin(kit)
    for quant, served in (("int8dq", ours), ("none", theirs)):
        loaded = kit.load(net=quantized.stock(), quant=quant)
        (artifact,) = loaded.to_json()["units"]["net"]["artifacts"]
        assert (artifact["key"], artifact["quantization"]) == (served.key, quant)
        assert f"quant='{quant}' was asked for" in loaded.report()
        assert "exact float32" in loaded.report()
    both = kit.load(net=quantized.stock()).to_json()["units"]["net"]["artifacts"]
    assert {a["key"] for a in both} == {ours.key, theirs.key}


def test_quant_leaves_a_component_alone_when_int8_is_not_meant_for_it(kit: Kit) -> None:
    plain, meant = float_twin(kit), {"int8": {"min_in_features": 1}, "quantization": "none"}
    assert kit.load(net=quantized.stock(), quant="int8dq").to_json()["units"]
    recipe = {**making.RECIPE, "components": {"net": meant}}
    kit.store.prune(key=plain.key)
    float_twin(kit, change=lambda fields: fields.update(recipe=recipe))
    with pytest.raises(NoArtifactError, match="built with --quant none"):
        kit.load(net=quantized.stock(), quant="int8dq", fallback="error")


@pytest.mark.parametrize("quant", ["int8", "", 8, True])
def test_quant_is_refused_when_it_is_no_word_of_build(kit: Kit, quant: Any) -> None:
    quantized.write(kit)
    with pytest.raises(UsageError, match="'none' or 'int8dq'"):
        kit.load(net=quantized.stock(), quant=quant)
    with pytest.raises(UsageError, match="'none' or 'int8dq'"):
        aotbuild.load_component(kit.store.root, quant=quant)
    assert options.QUANTIZATIONS == QUANTIZATIONS
