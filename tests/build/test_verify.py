"""What verification asks for, and what it lets pass."""

from __future__ import annotations

import pytest
import torch

from aotbuild.build.closeness import check_finite, relative_l2
from aotbuild.build.examples import cases, example_call
from aotbuild.build.verify import check_record
from aotbuild.cache.signature import Signature, TensorSpec
from aotbuild.errors import VerificationError

RANGE = Signature(
    inputs=(
        TensorSpec(
            path="sample", shape=(2, "8*h", "8*w"), dtype="float32", stride=None, device="cpu"
        ),
        TensorSpec(path="more.ids", shape=(2,), dtype="int64", stride=(1,), device="cpu"),
    ),
    static=(
        ("", {"dict": ["more", "sample", "scale"]}),
        ("more", {"dict": ["ids"]}),
        ("scale", None),
    ),
    outputs=(),
    symbols=(("h", 2, 8), ("w", 4, 4)),
)


def test_cases_are_the_corners_and_one_inside_when_shapes_move() -> None:
    found = list(cases(RANGE))
    assert found == [{"h": 2, "w": 4}, {"h": 8, "w": 4}, {"h": 4, "w": 4}]


def test_example_call_is_the_tree_of_the_signature_with_the_rehearsals_values() -> None:
    call = example_call(RANGE, {"more.ids": [3, 5]}, {"h": 2, "w": 4}, device="cpu", seed=0)
    assert set(call) == {"sample", "more", "scale"}
    assert call["sample"].shape == (2, 16, 32)
    assert call["more"]["ids"].tolist() == [3, 5]
    assert call["scale"] is None


def test_relative_l2_is_infinite_when_an_answer_is_not_a_number_or_of_another_shape() -> None:
    one = torch.ones(3)
    assert relative_l2([one * 1.5], [one]) == pytest.approx(0.5)
    assert relative_l2([one * float("nan")], [one]) == float("inf")
    assert relative_l2([torch.ones(4)], [one]) == float("inf")


def test_record_is_refused_with_the_numbers_when_one_case_is_off() -> None:
    case = {"sizes": {"h": 2}, "eager_error": 1e-6, "artifact_error": 2e-3, "bound": 1e-5}
    record = {"key": "ab" * 32, "reference": "float64", "cases": [case]}
    with pytest.raises(VerificationError, match=r"2\.00e-03.*1\.00e-05"):
        check_record(record, "unet")
    nan = {**case, "artifact_error": float("nan")}
    with pytest.raises(VerificationError):
        check_record({**record, "cases": [nan]}, "unet")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_comparison_is_refused_when_an_answer_is_not_all_numbers(value: float) -> None:
    fine, odd = [torch.ones(2)], [torch.ones(2), torch.tensor([1.0, value])]
    check_finite("unet", fine, fine)
    with pytest.raises(VerificationError, match="unet is wrong: its answer holds NaN or infinity"):
        check_finite("unet", odd, fine)
    with pytest.raises(VerificationError, match="eager's own answer holds NaN or infinity"):
        check_finite("unet", odd, odd)
