from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aotbuild.loaders.arguments import (
    BRING,
    SCALAR,
    TIMESTEP,
    first_tensor,
    refusal,
    scalar,
    timestep,
)
from aotbuild.recipe.component import ARGUMENT_RULES

SAMPLE = torch.zeros(2, 4)


@pytest.mark.parametrize(
    "value",
    [3, 3.0, torch.tensor(3), torch.tensor([3]), torch.tensor([3, 3], dtype=torch.float64)],
)
def test_timestep_is_float32_of_one_per_sample(value: Any) -> None:
    made = timestep(value, SAMPLE)
    assert made is not None
    assert torch.equal(made, torch.tensor([3.0, 3.0]))
    assert made.is_contiguous()


@pytest.mark.parametrize(
    "value",
    [
        True, "3", None, 1e300, 10**400, torch.zeros(3), torch.zeros(2, 1), torch.tensor(True),
        torch.tensor(1j),
    ],
)  # fmt: skip
def test_timestep_is_none_when_the_model_would_read_it_otherwise(value: Any) -> None:
    assert timestep(value, SAMPLE) is None


def test_timestep_is_none_when_the_first_tensor_has_no_batch() -> None:
    assert timestep(3, torch.zeros(())) is None


NUMBERS: dict[str, tuple[Any, float]] = {
    "a float": (0.3, 0.3),
    "an int": (2, 2.0),
    "zero": (0.0, 0.0),
    "a negative one": (-1.5, -1.5),
    "numpy's float": (np.float64(0.3), 0.3),
    "infinity": (float("inf"), float("inf")),
    "a tensor": (torch.tensor(0.3), 0.3),
    "a tensor of doubles": (torch.tensor(0.3, dtype=torch.float64), 0.3),
    "a tensor of halves": (torch.tensor(0.5, dtype=torch.float16), 0.5),
    "a tensor of integers": (torch.tensor(3), 3.0),
    "a parameter": (torch.nn.Parameter(torch.tensor(0.3)), 0.3),
    "an element of a tensor": (torch.tensor([0.1, 0.3])[1], 0.3),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_scalar_is_a_float32_tensor_of_rank_0_when_the_value_is(what: str) -> None:
    value, number = NUMBERS[what]
    made = scalar(value, SAMPLE)
    assert made is not None
    assert (made.dtype, made.shape, made.device) == (torch.float32, (), SAMPLE.device)
    assert made == torch.tensor(number)


OTHERS: dict[str, tuple[Any, str]] = {
    "a bool": (True, "x is True, not one real number"),
    "None": (None, "x is None, not one real number"),
    "a list, as several ControlNets take": ([0.5, 0.5], "x is a list, not one real number"),
    "a string": ("0.5", "x is a str, not one real number"),
    "a complex number": (1j, "x is a complex, not one real number"),
    "a number beyond float32": (1e300, "x is 1e\\+300, not one real number"),
    "an integer beyond any float": (10**400, "not one real number"),
    "one element of rank 1": (torch.ones(1), "x is a tensor, 1 float32 on cpu, not one real"),
    "a tensor of a bool": (torch.tensor(True), "x is a tensor, scalar bool on cpu, not one real"),
    "a complex tensor": (torch.tensor(1j), "scalar complex64 on cpu, not one real number"),
    "on another device": (torch.tensor(1.0, device="meta"), "scalar float32 on meta, not one"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_scalar_is_none_with_the_reason_when_the_value_is(what: str) -> None:
    value, words = OTHERS[what]
    assert scalar(value, SAMPLE) is None
    with pytest.raises(ValueError, match=words):
        raise ValueError(refusal(SCALAR, "x", value, SAMPLE))


def test_scalar_goes_from_the_cpu_to_the_first_tensors_device() -> None:
    for value in (0.5, torch.tensor(0.5)):
        made = scalar(value, torch.zeros(2, device="meta"))
        assert made is not None
        assert made.is_meta


def test_scalar_scales_as_the_number_itself_does_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
        for number in (0.3, 1, 0.7071067811865476):
            brought = scalar(number, x)
            assert brought is not None
            assert torch.equal(x * brought, x * number)


def test_first_tensor_is_the_first_without_a_rule() -> None:
    call = {"a": 1, "b": torch.ones(1), "c": SAMPLE}
    assert first_tensor(call, {"b": TIMESTEP}) is SAMPLE
    assert first_tensor({"a": 1}, ()) is None
    assert refusal(SCALAR, "x", 1, None) == (
        "x has the rule scalar/1, but the call has no tensor beside it"
    )


def test_rules_are_those_that_recipes_may_name() -> None:
    assert tuple(BRING) == ARGUMENT_RULES
