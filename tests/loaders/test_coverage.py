from __future__ import annotations

from typing import Any

import pytest
import torch

from aotbuild.cache.signature import Signature, TensorSpec
from aotbuild.loaders.coverage import differences

CPU = torch.device("cpu")


def spec(path: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(path=path, shape=shape, dtype="float32", stride=None, device="cpu")


SIGNATURE = Signature(
    inputs=(spec("sample", 2, "8*h", "8*w"), spec("more.same", "1*h")),
    static=(
        ("", {"dict": ["flag", "more", "sample"]}),
        ("flag", True),
        ("more", {"dict": ["same"]}),
    ),
    outputs=(spec("", 2),),
    symbols=(("h", 1, 4), ("w", 2, 3)),
)


def call(height: int, width: int, same: int, **changes: Any) -> dict[str, Any]:
    more = {"same": torch.zeros(same)}
    return {"sample": torch.zeros(2, height, width), "flag": True, "more": more, **changes}


@pytest.mark.parametrize(
    ("good", "made"),
    [
        (True, call(8, 16, 1)),
        (True, call(32, 24, 4)),
        (False, call(32, 24, 3)),
        (False, call(40, 24, 5)),
        (False, call(8, 8, 1)),
        (False, call(12, 16, 1)),
        (False, call(8, 16, 1, flag=1)),
        (False, call(8, 16, 1, more={})),
        (False, call(8, 16, 1, more=None)),
        (False, call(8, 16, 1, extra=None)),
        (False, call(8, 16, 1, sample=None)),
        (False, call(8, 16, 1, flag=torch.zeros(1))),
    ],
)
def test_differences_are_none_only_for_calls_in_range(good: bool, made: dict[str, Any]) -> None:
    assert (differences(SIGNATURE, made, CPU) == []) is good


def test_differences_name_what_was_found_and_what_was_expected() -> None:
    (reason,) = differences(SIGNATURE, call(8, 8, 1), CPU)
    assert (
        reason == "sample is 2x8x8 float32 on cpu, not 2x(8..32 by 8)x(16..24 by 8) float32 on cpu"
    )
