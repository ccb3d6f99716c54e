from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import aotbuild
from aotbuild.errors import LoadError, NoArtifactError, SourceError, UsageError

from . import making, nets
from .conftest import Kit, net_plan


def hits(loaded: aotbuild.Loaded, unit: str = "net") -> int:
    return sum(loaded.metrics()[unit]["hits"].values())


def reasons(loaded: aotbuild.Loaded) -> str:
    return " ".join(r for entry in loaded.to_json()["rejected"] for r in entry["reasons"])


def test_load_serves_eagers_answer_when_an_artifact_fits(kit: Kit) -> None:
    kit.net()
    module, call = nets.net(seed=3), nets.call(return_dict=False)
    expected = module(**call)[0]
    loaded = kit.load(net=module)
    answer = module(**call)
    assert type(answer) is tuple
    torch.testing.assert_close(answer[0], expected, rtol=1e-4, atol=1e-5)
    assert hits(loaded) == 1
    assert "verified" in loaded.report()


@pytest.mark.parametrize("seed", range(5))
def test_one_artifact_serves_any_weights_when_they_fit(kit: Kit, seed: int) -> None:
    kit.unet()
    module, call = nets.unet(seed=10 + seed), nets.unet_call()
    expected = module(**call)[0]
    kit.load(unet=module, fallback="error")
    error = (module(**call)[0] - expected).norm() / expected.norm()
    assert error < 1e-5


def test_load_takes_exact_before_dynamic_before_eager(kit: Kit) -> None:
    exact, dynamic = kit.net().key[:12], kit.dynamic_net().key[:12]
    module = nets.net()
    expected = {s: module(**nets.call(size=s, return_dict=False))[0] for s in (16, 24, 12)}
    loaded = kit.load(net=module)
    for size, value in expected.items():
        answer = module(**nets.call(size=size, return_dict=False))[0]
        torch.testing.assert_close(answer, value, rtol=1e-4, atol=1e-5)
    assert loaded.metrics()["net"]["hits"] == {exact: 1, dynamic: 1}
    assert loaded.metrics()["net"]["fallbacks"] == {"call": 1}


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 32), (32, 16), (24, 24)])
def test_a_dynamic_artifact_serves_its_whole_range(kit: Kit, height: int, width: int) -> None:
    kit.dynamic_net()
    module = nets.net(seed=2)
    sample = torch.randn(2, 4, height, width)
    expected = module(sample, 3.0, return_dict=False)[0]
    kit.load(net=module, fallback="error")
    answer = module(sample, 3.0, return_dict=False)[0]
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)


def other_class() -> nn.Module:
    class Other(nets.Net):
        pass

    return Other().eval()


def other_config() -> nn.Module:
    module = nets.net()
    module.config = {**nets.Net.config, "width": 17}
    return module


def other_shape() -> nn.Module:
    module = nets.net()
    module.to_q = nn.Linear(16, 16)
    module.to_q.weight = nn.Parameter(torch.randn(8, 16))
    return module


def missing() -> nn.Module:
    module = nets.net()
    module.to_q.bias = None
    return module


def offloaded() -> nn.Module:
    module = nets.net()
    module.register_forward_pre_hook(lambda m, a: None)
    return module


def replaced() -> nn.Module:
    module = nets.net()
    module.forward = module.forward
    vars(module)["forward"] = lambda *a, **k: None
    return module


def one_of_another_dtype() -> nn.Module:
    module = nets.net()
    module.kept.data = module.kept.data.double()
    return module


def transposed() -> nn.Module:
    module = nets.net()
    module.to_k.weight.data = module.to_k.weight.data.t()
    return module


def subclassed() -> nn.Module:
    class Wrapped(torch.Tensor):
        pass

    module = nets.net()
    module.to_k.weight = nn.Parameter(torch.randn(16, 16).as_subclass(Wrapped))
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "another class": (other_class, "the module is a Other"),
    "another config": (other_config, "width is 17"),
    "weights of another shape": (other_shape, "to_q.weight is 8x16, not 16x16"),
    "another precision": (lambda: nets.net().half(), "float16"),
    "one weight of another dtype": (one_of_another_dtype, "kept is float64, not float32"),
    "a parameter missing": (missing, "to_q.bias is missing"),
    "an offload hook": (offloaded, "has a hook"),
    "a replaced forward": (replaced, "has a hook or a replaced method"),
    "training mode": (lambda: nets.net().train(), "training is true"),
    "a transposed weight": (transposed, "to_k.weight has strides"),
    "a tensor subclass": (subclassed, "to_k.weight is a"),
}


@pytest.mark.parametrize("what", MODULES)
def test_load_turns_every_artifact_down_when_the_module_has(kit: Kit, what: str) -> None:
    make, reason = MODULES[what]
    kit.net()
    module = make()
    before = vars(module).get("forward")
    with pytest.raises(NoArtifactError, match="No artifact serves net") as caught:
        kit.load(net=module, fallback="error")
    assert reason in str(caught.value)
    assert vars(module).get("forward") is before
    loaded = kit.load(net=module)
    assert reason in loaded.report()
    assert reason in reasons(loaded)
    assert vars(module).get("forward") is before


def test_load_turns_an_artifact_down_when_a_peft_adapter_is_attached(kit: Kit) -> None:
    peft = pytest.importorskip("peft")
    kit.unet()
    module = nets.unet()
    module.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"]))
    with pytest.raises(NoArtifactError) as caught:
        kit.load(unet=module, fallback="error")
    assert "adapters" in str(caught.value)


def test_a_peft_adapter_attached_after_loading_is_served_by_eager(kit: Kit) -> None:
    peft = pytest.importorskip("peft")
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    config = peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    module.add_adapter(config)
    expected = type(module).forward(module, **call)[0]
    assert torch.equal(module(**call)[0], expected)
    assert loaded.metrics()["unet"]["fallbacks"] == {"state": 1}
    assert "adapters" in loaded.report()
    module.delete_adapters("default")


SOURCES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no such folder": ("/nowhere/at/all", {}, SourceError, "no folder"),
    "a revision of a folder": (Path("/"), {"revision": "abc"}, SourceError, "revision"),
    "another fallback": (Path("/"), {"fallback": "none"}, UsageError, "eager"),
    "no runner": (Path("/"), {"num_runners": 0}, UsageError, "from 1 on"),
}


@pytest.mark.parametrize("what", SOURCES)
def test_load_refuses(what: str) -> None:
    source, options, error, words = SOURCES[what]
    with pytest.raises(error, match=words):
        aotbuild.load(SimpleNamespace(), source, **options)


def test_load_refuses_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no artifacts"):
        aotbuild.load(SimpleNamespace(), tmp_path)


def test_load_refuses_components_that_the_pipeline_lacks(kit: Kit) -> None:
    kit.net()
    with pytest.raises(UsageError, match="no module 'transformer'"):
        kit.load(net=nets.net(), components=["transformer"])


def test_load_says_what_to_pass_when_it_is_given_a_component(kit: Kit) -> None:
    kit.net()
    with pytest.raises(UsageError, match=r"Net is a module.*SimpleNamespace\(NAME=module\)"):
        aotbuild.load(nets.net(), kit.store.root)


def test_load_refuses_a_second_time_until_restored(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    first = kit.load(net=module)
    with pytest.raises(LoadError, match=r"restore\(\)"):
        kit.load(net=module)
    first.restore()
    second = kit.load(net=module)
    module(**nets.call(return_dict=False))
    assert hits(second) == 1


@pytest.mark.parametrize("file", ["package.pt2", "manifest.json"])
def test_load_maps_nothing_when_a_byte_is_flipped(kit: Kit, file: str) -> None:
    manifest = kit.net()
    path = kit.store.root / manifest.folder / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    module = nets.net()
    with pytest.raises((NoArtifactError, SourceError)) as caught:
        kit.load(net=module, fallback="error", components=["net"])
    assert "altered" in str(caught.value)
    assert "forward" not in vars(module)


def test_load_refuses_an_extracted_library_when_it_was_altered(kit: Kit) -> None:
    kit.net()
    kit.load(net=nets.net()).restore()
    (library,) = (kit.libraries / "libraries").glob("*.so")
    library.chmod(0o644)
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    library.write_bytes(data)
    with pytest.raises(NoArtifactError, match="altered"):
        kit.load(net=nets.net(), fallback="error")


def test_load_refuses_a_plan_that_isnt_the_librarys(kit: Kit) -> None:
    kit.net(plan=net_plan(nets.net())[1:])
    with pytest.raises(NoArtifactError, match="constants aren't the manifest's"):
        kit.load(net=nets.net(), fallback="error")


def test_an_unverified_artifact_compares_its_first_call_when_it_may(kit: Kit) -> None:
    kit.net(verified=False)
    module, call = nets.net(), nets.call(return_dict=False)
    loaded = kit.load(net=module)
    assert "compares its first call" in loaded.report()
    expected = type(module).forward(module, **call)[0]
    assert torch.equal(module(**call)[0], expected)
    assert "first call agreed with eager" in loaded.report()
    torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)


def test_an_unverified_artifact_is_disabled_when_its_first_call_disagrees(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    swapped = {"to_q.bias": "to_k.bias", "to_k.bias": "to_q.bias", "to_q.weight": "to_v.weight"}
    plan = [
        making.constant(
            c.name, nets.net().get_parameter(swapped[c.name]), sources=(swapped[c.name],)
        )
        if c.name in swapped
        else c
        for c in net_plan(nets.net())
    ]
    kit.net(verified=False, plan=tuple(plan))
    module, call = nets.net(), nets.call(return_dict=False)
    expected = type(module).forward(module, **call)[0]
    loaded = kit.load(net=module)
    for _ in range(2):
        assert torch.equal(module(**call)[0], expected)
    assert "disagreed with eager" in loaded.report()
    assert "disagreed with eager" in caplog.text
    assert loaded.metrics()["net"]["fallbacks"]["disabled"] >= 1


def test_require_verified_turns_an_unverified_artifact_down(kit: Kit) -> None:
    key = kit.net(verified=False).key[:12]
    with pytest.raises(NoArtifactError, match=f"aotbuild verify {key}"):
        kit.load(net=nets.net(), require_verified=True, fallback="error")


def test_self_check_false_serves_at_once(kit: Kit) -> None:
    kit.net(verified=False)
    loaded = kit.load(net=nets.net(), self_check=False)
    assert "compares" not in loaded.report()


def test_load_imports_neither_diffusers_nor_the_build(kit: Kit) -> None:
    kit.net(change=lambda f: f.update(module=making.identify(nn.Linear(1, 1)), state={}))
    code = (
        "import sys, types, torch, aotbuild\n"
        f"pipe = types.SimpleNamespace(net=torch.nn.Linear(1, 1))\n"
        f"aotbuild.load(pipe, {str(kit.store.root)!r}, store={str(kit.libraries)!r})\n"
        "odd = {'diffusers', 'torchao', 'click', 'huggingface_hub', 'transformers'}\n"
        "print(sorted(odd & {m.split('.')[0] for m in sys.modules}),"
        " 'aotbuild.build' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
