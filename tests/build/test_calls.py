"""Recorded calls: ruled arguments in their one form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aotbuild.build.calls import canonical, small_values
from aotbuild.errors import BuildError
from aotbuild.loaders.arguments import BRING

SAMPLE = torch.zeros(2, 4)
VALUES: list[Any] = [0.3, 2, torch.tensor(3), torch.tensor(0.5, dtype=torch.float64)]
WRONG: list[Any] = [None, True, "0.5", [0.5], 1j, torch.tensor(True), torch.tensor(1j)]


def plain(rule: str, value: Any) -> Any:
    found = canonical({"x": value, "sample": SAMPLE}, {"x": rule})
    assert found["sample"] is SAMPLE
    return found["x"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("rule", BRING)
def test_canonical_is_the_form_that_the_loader_brings_the_value_to(rule: str, value: Any) -> None:
    found, brought = plain(rule, value), BRING[rule](value, SAMPLE)
    assert brought is not None
    assert (found.shape, found.dtype, found.is_meta) == (brought.shape, brought.dtype, True)


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("rule", BRING)
def test_canonical_refuses_what_the_loader_would_not_bring(rule: str, value: Any) -> None:
    assert BRING[rule](value, SAMPLE) is None
    with pytest.raises(BuildError, match="can't bring x"):
        plain(rule, value)


def test_canonical_takes_one_element_of_rank_1_for_a_timestep_alone() -> None:
    assert plain("timestep/1", torch.ones(1)).shape == (2,)
    with pytest.raises(BuildError, match=r"can't bring x = tensor\(\[1.\]\) to float32 of shape"):
        plain("scalar/1", torch.ones(1))


def test_canonical_refuses_when_the_call_has_no_such_argument() -> None:
    with pytest.raises(BuildError, match=r"is for 'scale', but the call has \['sample'\]"):
        canonical({"sample": SAMPLE}, {"scale": "scalar/1"})


def test_canonical_finds_the_batch_beside_every_ruled_argument() -> None:
    rules = {"timestep": "timestep/1", "scale": "scalar/1"}
    call = {"scale": torch.tensor(1.0), "timestep": torch.tensor([7]), "sample": SAMPLE}
    found = canonical(call, rules)
    assert (found["timestep"].shape, found["scale"].shape) == ((2,), ())
    assert small_values(call, found) == {"timestep": [7.0, 7.0], "scale": [1.0]} | {
        "sample": [0.0] * 8
    }
