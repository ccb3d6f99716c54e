from __future__ import annotations

import copy
import inspect
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import aotbuild
from aotbuild.errors import LoadError, SignatureMismatch

from . import nets
from .conftest import Kit

Call = dict[str, Any]


def with_(**changes: Any) -> Callable[[Call], Call]:
    return lambda call: {**call, **changes}


HITS: dict[str, Callable[[Call], Call]] = {
    "the very call": lambda c: c,
    "a Python float as timestep": with_(timestep=7.25),
    "a Python int as timestep": with_(timestep=7),
    "a timestep of rank 0": with_(timestep=torch.tensor(7)),
    "a timestep of one element": with_(timestep=torch.tensor([7], dtype=torch.int32)),
    "a half timestep": with_(timestep=torch.tensor(7.5, dtype=torch.float16)),
    "a double timestep": with_(timestep=torch.tensor([7.3, 9.1], dtype=torch.float64)),
    "channels_last": lambda c: {**c, "sample": c["sample"].to(memory_format=torch.channels_last)},
    "a transposed sample": lambda c: {**c, "sample": c["sample"].transpose(2, 3)},
    "an expanded sample": lambda c: {**c, "sample": c["sample"][:1].expand(2, -1, -1, -1)},
    "a misaligned sample": lambda c: {
        **c, "sample": torch.cat([torch.zeros(1), c["sample"].flatten()])[1:].view(2, 4, 8, 8)
    },
    "a default said aloud": with_(attention_mask=None, cross_attention_kwargs=None),
}  # fmt: skip

MISSES: dict[str, Callable[[Call], Call]] = {
    "another resolution": lambda c: {**c, "sample": torch.randn(2, 4, 16, 16)},
    "a smaller resolution": lambda c: {**c, "sample": torch.randn(2, 4, 4, 4)},
    "another batch": lambda c: nets.unet_call(batch=1),
    "a longer prompt": lambda c: nets.unet_call(tokens=9),
    "return_dict=True": with_(return_dict=True),
    "cross_attention_kwargs": with_(cross_attention_kwargs={"scale": 0.5}),
    "an empty dict instead of None": with_(cross_attention_kwargs={}),
    "an attention mask": with_(encoder_attention_mask=torch.ones(2, 7)),
    "1 instead of False": with_(return_dict=0),
}


@pytest.mark.parametrize("what", HITS)
def test_a_call_is_served_by_the_artifact_when_it_is(kit: Kit, what: str) -> None:
    kit.unet()
    module, call = nets.unet(), HITS[what](nets.unet_call())
    expected = module(**call)[0]
    loaded = kit.load(unet=module, fallback="error")
    torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 1


@pytest.mark.parametrize("what", MISSES)
def test_a_call_is_served_by_eager_when_it_has(kit: Kit, what: str) -> None:
    kit.unet()
    module, call = nets.unet(), MISSES[what](nets.unet_call())
    expected = module(**call)
    loaded = kit.load(unet=module)
    answer = module(**call)
    assert type(answer) is type(expected)
    assert torch.equal(answer[0], expected[0])
    assert loaded.metrics()["unet"]["fallbacks"] == {"call": 1}


def test_one_artifact_serves_every_number_when_an_argument_is_brought_to_a_scalar(
    kit: Kit,
) -> None:
    kit.scaled_net()
    module, call = nets.net(), nets.call(return_dict=False)
    loaded = kit.load(net=module, fallback="error")
    gains: list[Any] = [0.3, 0.5, 1.0, 2, 0, torch.tensor(0.3), torch.tensor(3)]
    for gain in gains:
        expected = type(module).forward(module, **call, gain=gain)[0]
        torch.testing.assert_close(module(**call, gain=gain)[0], expected, rtol=1e-4, atol=1e-5)
    module(**call)  # the default
    assert sum(loaded.metrics()["net"]["hits"].values()) == len(gains) + 1


@pytest.mark.parametrize(
    ("gain", "reason"),
    [(True, "gain is True, not one"), (torch.ones(1), "gain is a tensor, 1 float32 on cpu, not")],
)
def test_a_call_is_served_by_eager_with_the_reason_when_an_argument_isnt_one_number(
    kit: Kit, gain: Any, reason: str
) -> None:
    kit.scaled_net()
    module, call = nets.net(), nets.call(return_dict=False, gain=gain)
    expected = module(**call)[0]
    loaded = kit.load(net=module)
    assert torch.equal(module(**call)[0], expected)
    assert loaded.metrics()["net"]["fallbacks"] == {"call": 1}
    assert reason in loaded.report()


def test_the_first_artifacts_rule_holds_when_another_one_has_no_rule_for_the_argument(
    kit: Kit,
) -> None:
    kit.net()  # with the gain compiled in
    scaled = kit.scaled_net()
    module, call = nets.net(), nets.call(return_dict=False)
    loaded = kit.load(net=module, fallback="error")
    for gain in (1.0, 0.5):
        expected = type(module).forward(module, **call, gain=gain)[0]
        torch.testing.assert_close(module(**call, gain=gain)[0], expected, rtol=1e-4, atol=1e-5)
    assert loaded.metrics()["net"]["hits"][scaled.key[:12]] == 2


def test_a_half_sample_is_served_by_eager_as_eager_serves_it(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    call["sample"] = call["sample"].double()
    loaded = kit.load(unet=module)
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        module(**call)
    assert loaded.metrics()["unet"]["fallbacks"] == {"call": 1}


def test_a_meta_sample_is_eagers_to_refuse(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    call["sample"] = call["sample"].to("meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        module(**call)
    assert "a sample of 2x4x8x8 float32 on meta" in loaded.report()


def test_positional_and_keyword_arguments_are_one_call(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module, fallback="error")
    first = module(
        call["sample"], call["timestep"], call["encoder_hidden_states"], return_dict=False
    )
    second = module(**call)
    assert torch.equal(first[0], second[0])
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 2


@pytest.mark.parametrize("change", [{"nonsense": 1}, {"encoder_hidden_states": ...}])
def test_an_argument_too_many_or_too_few_is_eagers_type_error(
    kit: Kit, change: dict[str, Any]
) -> None:
    kit.unet()
    module = nets.unet()
    call = {k: v for k, v in {**nets.unet_call(), **change}.items() if v is not ...}
    kit.load(unet=module)
    with pytest.raises(TypeError, match=r"nonsense|encoder_hidden_states"):
        module(**call)


def test_inputs_that_require_grad_are_served_by_eager(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    call["sample"].requires_grad_()
    with torch.enable_grad():
        module(**call)[0].sum().backward()
    assert call["sample"].grad is not None
    assert loaded.metrics()["unet"]["fallbacks"] == {"gradients": 1}
    module(**call)  # under no_grad the flag doesn't matter
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 1


def test_autocast_is_served_by_eager(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    with torch.autocast("cpu", torch.bfloat16):
        expected = type(module).forward(module, **call)[0]
        answer = module(**call)[0]
    assert torch.equal(answer, expected)
    assert answer.dtype == expected.dtype
    assert loaded.metrics()["unet"]["fallbacks"] == {"autocast": 1}


def test_inference_mode_is_served_by_the_artifact(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    expected = module(**call)[0]
    kit.load(unet=module, fallback="error")
    with torch.inference_mode():
        torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)
        for parameter in module.parameters():
            parameter.data = parameter.data.clone()
        torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)


class DoublesSilu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        return answer * 2 if func is nn.functional.silu else answer


def test_eager_serves_when_a_mode_changes_what_functions_do(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    loaded = kit.load(unet=module)
    with DoublesSilu():
        expected = type(module).forward(module, **call)[0]
        assert torch.equal(module(**call)[0], expected)
    with torch.device("cpu"):
        module(**call)
    assert loaded.metrics()["unet"]["fallbacks"] == {"mode": 1}
    assert sum(loaded.metrics()["unet"]["hits"].values()) == 1
    assert "DoublesSilu" in loaded.report()


def test_an_uncovered_call_raises_when_the_user_asked_for_it(kit: Kit) -> None:
    kit.unet()
    module = nets.unet()
    kit.load(unet=module, fallback="error")
    with pytest.raises(SignatureMismatch, match="sample is 2x4x12x12 float32") as caught:
        module(**nets.unet_call(size=12))
    assert "aotbuild build tiny --gpu cpu --dtype fp32 --resolution 192x192" in str(caught.value)


def test_the_first_uncovered_call_warns_once_and_says_how_to_cover_it(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.unet()
    module = nets.unet()
    kit.load(unet=module)
    with caplog.at_level(logging.WARNING):
        for size in (12, 16, 12):
            module(**nets.unet_call(size=size))
    (record,) = caplog.records
    message = record.getMessage()
    assert "sample is 2x4x12x12 float32" in message
    assert "aotbuild build tiny --gpu cpu --dtype fp32 --resolution 192x192 --batch 1" in message


def test_a_generator_that_decode_never_reads_doesnt_matter(kit: Kit) -> None:
    kit.vae()
    module, z = nets.vae(), torch.randn(1, 4, 8, 8)
    expected = module.decode(z, return_dict=False)[0]
    kit.load(vae=module, fallback="error")
    answer = module.decode(z, return_dict=False, generator=torch.Generator())[0]
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)


def test_the_signature_is_the_methods_own(kit: Kit) -> None:
    kit.unet()
    module = nets.unet()
    before = inspect.signature(module.forward)
    kit.load(unet=module)
    assert inspect.signature(module.forward) == before
    assert module.forward.__name__ == "forward"


def test_a_deep_copy_runs_its_own_weights(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    kit.load(unet=module, fallback="error")
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.data.mul_(0.5)
    expected = type(module).forward(copied, **call)[0]
    assert torch.equal(copied(**call)[0], expected)
    assert not torch.allclose(module(**call)[0], expected)
    again = copy.deepcopy(copied)
    assert again.forward.__self__ is again


def test_pickling_a_swapped_component_is_refused(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    loaded = kit.load(net=module)
    with pytest.raises(LoadError, match="can't be pickled"):
        pickle.dumps(module)
    loaded.restore()
    assert pickle.loads(pickle.dumps(module)).training is False


def test_threads_get_their_own_answers_while_weights_move(kit: Kit) -> None:
    kit.net()
    kit.dynamic_net()
    module = nets.net()
    loaded = kit.load(net=module, num_runners=2)
    sizes = (16, 24, 12, 8)
    expected = {s: nets.net()(**nets.call(size=s, return_dict=False))[0] for s in sizes}
    wrong: list[str] = []

    def work(index: int) -> None:
        with torch.no_grad():
            for n in range(40):
                size = sizes[(index + n) % len(sizes)]
                answer = module(**nets_call(size))[0]
                if not torch.allclose(answer, expected[size], rtol=1e-4, atol=1e-5):
                    wrong.append(f"{size}")

    calls = {s: nets.call(size=s, return_dict=False) for s in sizes}

    def nets_call(size: int) -> Call:
        return calls[size]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        module.to_q.weight.data = module.to_q.weight.data.clone()
        loaded.refresh()
    for thread in threads:
        thread.join()
    assert wrong == []
    served = loaded.metrics()["net"]
    assert sum(served["hits"].values()) + sum(served["fallbacks"].values()) == 240


def test_the_gil_is_free_during_a_run(kit: Kit) -> None:
    kit.unet()
    module, call = nets.unet(), nets.unet_call()
    kit.load(unet=module, fallback="error")
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.wait(0.0005):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(60):
        module(**call)
    stop.set()
    thread.join()
    assert ticks[0] > 5


def test_a_failing_run_raises_and_doesnt_crash(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    kit.load(net=module)
    (artifact,) = vars(module)["forward"].artifacts
    with pytest.raises(LoadError, match="takes 2 tensors; got 1"):
        artifact.run([torch.zeros(1)])


def test_a_module_without_hooks_is_what_the_swap_leaves(kit: Kit) -> None:
    kit.net()
    module = nets.net()
    loaded: aotbuild.Loaded = kit.load(net=module)
    assert isinstance(module, nn.Module)
    assert [n for n in vars(module) if n == "forward"] == ["forward"]
    loaded.restore()
    assert "forward" not in vars(module)
