from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import aotbuild
from aotbuild.errors import NoArtifactError, ReleasedError, SignatureMismatch
from aotbuild.loaders.load import load_on_trial

from . import making, nets, quantized
from .conftest import Kit, net_plan
from .test_quantized import INT8_BYTES, error

CODE_MB = 12.0
"""What a library, its container and the loader's own objects take."""

FREED = ("to_q.weight", "to_k.weight", "to_v.weight", "mix.weight")


def held(module: Any) -> int:
    """Bytes of the weights that an int8 artifact quantizes."""
    return sum(module.get_parameter(p).untyped_storage().nbytes() for p in FREED)


@pytest.fixture
def freed(kit: Kit) -> tuple[Any, aotbuild.Loaded]:
    """A module whose weights are gone, and what was loaded."""
    quantized.write(kit)
    module = quantized.stock()
    loaded = kit.load(net=module, fallback="error")
    kit.loaded.clear()
    return module, loaded


def test_weights_are_freed_at_loading_when_only_int8_constants_are_made_of_them(kit: Kit) -> None:
    quantized.write(kit)
    module = quantized.stock(seed=5)
    others = {n: p.clone() for n, p in module.named_parameters() if n not in FREED}
    expected = quantized.torchaos(module)(**quantized.call())[0]
    loaded = kit.load(net=module, fallback="error")
    kit.loaded.clear()
    assert held(module) == 0
    assert error(module(**quantized.call())[0], expected) < 5e-3
    assert all(torch.equal(module.get_parameter(n), p) for n, p in others.items())
    metrics = loaded.metrics()["net"]
    assert (metrics["extra_bytes"], metrics["freed_bytes"]) == (INT8_BYTES, 64 * 16 * 4)
    assert "eager had: it can't run any more" in loaded.report()


def test_nothing_is_freed_when_eager_may_still_run(kit: Kit) -> None:
    key = quantized.write(kit).key
    module = quantized.stock()
    kit.load(net=module).restore()
    assert held(module) == 64 * 16 * 4
    load_on_trial(SimpleNamespace(net=module), kit.store.root, key).restore()
    assert held(module) == 64 * 16 * 4


@pytest.mark.parametrize("method", ["restore", "refresh"])
def test_there_is_no_way_back_when_weights_were_freed(freed: Any, method: str) -> None:
    module, loaded = freed
    with pytest.raises(ReleasedError, match=r"to_\w.weight.*fallback='eager' keeps"):
        getattr(loaded, method)()
    module(**quantized.call())
    assert loaded.metrics()["net"]["fallbacks"] == {}


def test_calls_that_only_eager_could_answer_raise_when_weights_were_freed(freed: Any) -> None:
    module, _ = freed
    with pytest.raises(SignatureMismatch, match="sample is 2x4x12x12"):
        module(**quantized.call(size=12))
    with pytest.raises(TypeError, match="nonsense"):
        module(**quantized.call(), nonsense=1)
    with pytest.raises(ReleasedError, match="copy of net"):
        copy.deepcopy(module)
    with pytest.raises(ReleasedError, match="net would have to run eagerly"):
        torch.export.export(Wrapper(module), (), quantized.call(), strict=False)


class Wrapper(torch.nn.Module):
    """What is traced, with the swapped module in it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, sample: Any, timestep: Any, return_dict: bool) -> Any:
        return self.inner(sample, timestep, return_dict=return_dict)


@pytest.mark.parametrize("agrees", [True, False])
def test_weights_are_freed_after_the_last_check_where_artifacts_have_to_pass_one(
    kit: Kit, agrees: bool
) -> None:
    plan = quantized.plan(quantized.stock())
    if not agrees:
        other = {"mix.bias": ("point.bias",), "point.bias": ("mix.bias",)}
        plan = tuple(
            making.constant(c.name, torch.empty(c.shape), c.rule, other[c.name])
            if c.name in other else c for c in plan
        )  # fmt: skip
    quantized.write(kit)
    quantized.write(kit, verified=False, plan=plan)
    module = quantized.stock()
    module.mix.bias.data += 5
    eager = type(module).forward(module, **quantized.call())[0]
    loaded = kit.load(net=module, fallback="error")
    kit.loaded.clear()
    assert held(module) == 64 * 16 * 4
    dispatcher = vars(module)["forward"]
    dispatcher.artifacts = dispatcher.artifacts[::-1]  # the unchecked one is asked first
    dispatcher._known.clear()
    if agrees:
        assert torch.equal(module(**quantized.call())[0], eager)
    else:
        with pytest.raises(SignatureMismatch, match="disagreed with eager"):
            module(**quantized.call())
    assert held(module) == 0
    assert error(module(**quantized.call())[0], eager) < 5e-2
    assert loaded.metrics()["net"]["freed_bytes"] == 64 * 16 * 4


def test_threads_that_check_at_once_get_right_answers_while_weights_are_freed(kit: Kit) -> None:
    quantized.write(kit, verified=False)
    module, call = quantized.stock(), quantized.call()
    expected = type(module).forward(module, **call)[0]
    kit.load(net=module, fallback="error", num_runners=2)
    kit.loaded.clear()
    errors: list[float] = []

    def work() -> None:
        with torch.no_grad():
            errors.extend(error(module(**call)[0], expected) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 30
    assert max(errors) < 5e-2
    assert held(module) == 0


def test_nothing_is_freed_when_another_component_gets_no_artifact(kit: Kit) -> None:
    quantized.write(kit)
    module, other = quantized.stock(), nets.net().double()
    kit.net(component="other")
    before = {n: t.clone() for n, t in module.state_dict().items()}
    with pytest.raises(NoArtifactError, match="No artifact serves other"):
        kit.load(net=module, other=other, fallback="error")
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert "forward" not in vars(module)


def test_an_artifact_that_cant_be_bound_beside_another_keeps_no_weights(kit: Kit) -> None:
    other = {"to_qkv.bias": ("to_v.bias", "to_k.bias", "to_q.bias")}
    plan = tuple(
        making.constant(c.name, torch.empty(c.shape), c.rule, other[c.name])
        if c.name in other else c for c in quantized.plan(quantized.stock())
    )  # fmt: skip
    quantized.write(kit)
    quantized.write(kit, verified=False, plan=plan)
    module = quantized.stock()
    loaded = kit.load(net=module, fallback="error")
    kit.loaded.clear()
    assert "disabled: the module's weights don't fit: to_qkv.bias is made of" in loaded.report()
    assert held(module) == 0
    module(**quantized.call())


def test_weights_stay_when_another_artifact_reads_them_as_they_are(kit: Kit) -> None:
    quantized.write(kit)
    unquantized(kit)
    module = quantized.stock()
    kit.load(net=module, fallback="error").restore()
    assert held(module) == 64 * 16 * 4


def unquantized(kit: Kit) -> None:
    module, call = quantized.stock(), quantized.call(size=8)
    package = kit.compiled / "stock8.pt2"
    making.compile_call(module, "forward", call, package)
    signature = making.signature_of(module, "forward", call, {"timestep": "timestep/1"})
    making.write_artifact(kit.store, module, package, signature, net_plan(module))


def test_a_tied_weight_stays_when_the_other_name_could_still_be_read(kit: Kit) -> None:
    quantized.write(kit)
    module = quantized.stock()
    module.to_k.weight = module.to_q.weight
    expected = quantized.torchaos(module)(**quantized.call())[0]
    loaded = kit.load(net=module, fallback="error")
    kit.loaded.clear()
    assert module.to_q.weight.numel() == 256
    assert loaded.metrics()["net"]["freed_bytes"] == 2 * 256 * 4
    assert error(module(**quantized.call())[0], expected) < 5e-3


def test_one_weight_of_a_joined_product_is_quantized_anew_when_only_it_is_replaced(
    freed: Any,
) -> None:
    module, loaded = freed
    twin = quantized.stock()
    torch.manual_seed(0)
    twin.to_k.weight.data = torch.randn(16, 16)
    module.to_k.weight.data = twin.to_k.weight.data.clone()
    expected = quantized.torchaos(twin)(**quantized.call())[0]
    assert error(module(**quantized.call())[0], expected) < 5e-3
    assert held(module) == 0
    assert loaded.metrics()["net"]["extra_bytes"] == INT8_BYTES


def test_a_freed_weight_doesnt_pass_for_another_layers(freed: Any) -> None:
    module, _ = freed
    module.to_q.weight = module.to_k.weight
    with pytest.raises(SignatureMismatch, match="made of 0 \\+ 16x16"):
        module(**quantized.call())


@pytest.mark.parametrize("mapped", [False, True])
def test_the_peak_stays_within_one_layer_when_weights_are_freed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mapped: bool
) -> None:
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    weights = write_wide(kit, tmp_path) * mapped
    code = f"import sys; sys.path.insert(0, {here!r}); import wide; wide.measure(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(kit.store.root), str(kit.libraries), weights],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    eager_mb, peak_mb, resident_mb = map(float, done.stdout.split())
    assert peak_mb <= 1.05 * eager_mb + CODE_MB
    assert resident_mb <= 0.3 * eager_mb + CODE_MB


def write_wide(kit: Kit, folder: Path) -> str:
    """Its artifact, and a file of weights; the path of the latter."""
    import wide  # type: ignore[import-not-found]

    module, call = wide.Wide().eval(), {"sample": torch.randn(4, wide.WIDTH)}
    signature = making.signature_of(module, "forward", call, {})
    package = kit.compiled / f"wide-{wide.LAYERS}.pt2"
    paths = [n for n, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)]
    plan = [making.constant(f"{p}.bias", module.get_parameter(f"{p}.bias")) for p in paths]
    for path in paths:
        sources, shape = (f"{path}.weight",), (wide.WIDTH, wide.WIDTH)
        pair = (torch.empty(shape, dtype=torch.int8), torch.empty(wide.WIDTH, 1))
        names = [f"{path}.{quantized.PARAMETRIZED}{i}" for i in (0, 1)]
        plan += [
            making.constant(n, t, "int8_rows/1", sources) for n, t in zip(names, pair, strict=True)
        ]
    if not package.exists():
        quantized.compile_int8(module, set(paths), call, package)
    making.write_artifact(kit.store, module, package, signature, tuple(plan), component="wide")
    kit.load(wide=module).restore()
    save_file(module.state_dict(), folder / "wide.safetensors")
    return str(folder / "wide.safetensors")


def test_empty_weights_are_not_handed_out_for_saving(freed: tuple[Any, aotbuild.Loaded]) -> None:
    module, _ = freed
    with pytest.raises(ReleasedError, match=r"state_dict\(\): weights of net were freed"):
        module.state_dict()


def test_an_uncovered_call_is_told_to_build_for_int8_when_the_artifact_is(
    freed: tuple[Any, aotbuild.Loaded],
) -> None:
    module, _ = freed
    call = {**quantized.call(), "sample": torch.zeros(2, 4, 24, 24)}
    with pytest.raises(SignatureMismatch, match="--quant int8dq"):
        module(**call)


@pytest.mark.parametrize("change", ["mul_", "zero_", "fill"])
def test_a_freed_weight_changed_in_place_is_refused_and_well_again_once_loaded(
    freed: tuple[Any, aotbuild.Loaded], change: str
) -> None:
    module, _ = freed
    call = quantized.call()
    with torch.no_grad():
        weight = module.to_q.weight
        {"mul_": lambda: weight.mul_(3), "zero_": weight.zero_, "fill": lambda: weight.fill_(1)}[
            change
        ]()
        with pytest.raises(SignatureMismatch, match="changed in place after it had been freed"):
            module(**call)
        other = quantized.stock(seed=8)
        module.load_state_dict(other.state_dict())
        other.lost = module.lost.clone()
        expected = quantized.torchaos(other)(**call)[0]
        assert error(module(**call)[0], expected) < 5e-3


def test_loaded_values_stay_their_owners_when_weights_had_been_freed(
    freed: tuple[Any, aotbuild.Loaded],
) -> None:
    module, _ = freed
    first = quantized.stock(seed=8).state_dict()
    kept = {n: t.clone() for n, t in first.items()}
    for values in (first, quantized.stock(seed=9).state_dict(), first):
        module.load_state_dict(values)
    assert all(torch.equal(first[n], t) for n, t in kept.items())
    other = quantized.stock(seed=8)
    other.lost = module.lost.clone()
    with torch.no_grad():
        expected = quantized.torchaos(other)(**quantized.call())[0]
        assert error(module(**quantized.call())[0], expected) < 5e-3


def test_empty_weights_of_a_layer_are_not_handed_out_either(
    freed: tuple[Any, aotbuild.Loaded],
) -> None:
    module, _ = freed
    for hand_out in (module.to_q.state_dict, lambda: copy.deepcopy(module.to_q)):
        with pytest.raises(ReleasedError, match="were freed"):
            hand_out()
    with pytest.raises(ReleasedError, match="pickling"):
        pickle.dumps(module.to_q)


def test_weights_loaded_after_a_refused_restore_are_freed_again(
    freed: tuple[Any, aotbuild.Loaded],
) -> None:
    module, loaded = freed
    with pytest.raises(ReleasedError):
        loaded.restore()
    module.load_state_dict(quantized.stock(seed=8).state_dict())
    with torch.no_grad():
        module(**quantized.call())
    assert loaded.metrics()["net"]["freed_bytes"] == 64 * 16 * 4
