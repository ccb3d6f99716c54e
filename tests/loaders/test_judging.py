from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from aotbuild.cache.manifest import Constant
from aotbuild.loaders.judging import Judge, Verdict
from aotbuild.loaders.weights import Weights

from . import making, quantized

FLOAT = torch.float32


def verdict(module: Any, plan: tuple[Constant, ...], precision: str = "float32") -> Verdict:
    weights = Weights(module)
    slots = {path: weights.find(path) for c in plan for path in c.sources}
    return Judge(plan, weights, torch.device("cpu"), precision).judge(slots)


def rows(shape: tuple[int, ...], dtype: torch.dtype, *sources: str) -> Constant:
    return making.constant("c", torch.empty(shape).to(dtype), "int8_rows/1", sources)


def viewed(shape: tuple[int, ...], *sources: str) -> Constant:
    return making.constant("c", torch.empty(shape), "view/1", sources)


MISFITS: dict[str, tuple[Constant, str]] = {
    "too few rows": (
        rows((32, 16), torch.int8, "to_q.weight"),
        "c is made of 16x16, which gives no 32x16",
    ),
    "other columns": (rows((16, 8), torch.int8, "to_q.weight"), "gives no 16x8"),
    "sources of different widths": (
        rows((32, 16), torch.int8, "to_q.weight", "embed.weight"),
        "16x16 \\+ 16x1, which gives no",
    ),
    "a vector": (rows((16, 1), FLOAT, "to_q.bias"), "made of 16, which"),
    "a scale for every element": (rows((16, 16), FLOAT, "to_q.weight"), "gives no 16x16"),
    "data of another dtype": (
        rows((16, 16), torch.uint8, "to_q.weight"),
        "planned as uint8, not int8 data or float32 scale",
    ),
    "a missing source": (rows((16, 16), torch.int8, "to_x.weight"), "to_x.weight is missing"),
    "no source": (
        replace(rows((16, 16), torch.int8, "to_q.weight"), sources=()),
        "gives no 16x16",
    ),
    "transposed data": (
        making.constant(
            "c", torch.empty(16, 16, dtype=torch.int8).t(), "int8_rows/1", ("to_q.weight",)
        ),
        "planned with strides",
    ),
    "a view of another size": (
        viewed((16, 15), "mix.weight"),
        "mix.weight is 16x16x1x1, which can't be seen as 16x15",
    ),
    "a view of two": (viewed((16, 16), "mix.weight", "point.weight"), "of 2 tensors, not of one"),
    "an unknown rule": (
        making.constant("c", torch.empty(1), "magic/1", ("to_q.bias",)),
        "c is made by the unknown rule 'magic/1'",
    ),
}


@pytest.mark.parametrize("what", MISFITS)
def test_a_constant_is_refused_with_the_reason_when_its_plan_has(what: str) -> None:
    constant, words = MISFITS[what]
    found = verdict(quantized.stock(), (constant,))
    assert found.summary is not None
    assert re.search(words, found.summary)
    assert not found.only_cast


def test_weights_are_quantized_in_the_precision_unless_the_plans_others_have_another() -> None:
    data = rows((16, 16), torch.int8, "to_q.weight")
    bias = making.constant("to_q.bias", torch.empty(16))
    module = quantized.stock()
    assert verdict(module, (data,)).summary is None
    found = verdict(module, (data,), "bfloat16")
    assert found.summary == "to_q.weight is float32, not bfloat16"
    assert verdict(module, (data, bias), "float16").summary is None
    cast = verdict(module.half(), (data, bias), "float16")
    assert cast.only_cast
    assert not verdict(module, (data, bias), "bfloat16").only_cast


class Rotary(torch.nn.Module):
    """A table of complex numbers as a plain attribute, which `.to` doesn't move."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.polar(torch.ones(4, 3), torch.arange(12.0).reshape(4, 3))
        self.angles = torch.arange(24.0)


NUMBERS: dict[str, tuple[Constant, str | None]] = {
    "its numbers": (making.constant("c", torch.empty(4, 6), "real/1", ("table",)), None),
    "pairs": (making.constant("c", torch.empty(4, 3, 2), "real/1", ("table",)), None),
    "too many": (
        making.constant("c", torch.empty(4, 8), "real/1", ("table",)),
        "table is 4x3 complex numbers, which make no 4x8",
    ),
    "doubles": (
        making.constant("c", torch.empty(4, 6).double(), "real/1", ("table",)),
        "table is complex64, not complex128",
    ),
    "integers": (
        making.constant("c", torch.empty(4, 6).int(), "real/1", ("table",)),
        "table is complex64, not complex numbers of int32",
    ),
    "numbers of a real tensor": (
        making.constant("c", torch.empty(4, 6), "real/1", ("angles",)),
        "angles is float32, not complex64",
    ),
    "transposed": (
        making.constant("c", torch.empty(6, 4).t(), "real/1", ("table",)),
        "c is planned with strides (1, 4), not contiguous",
    ),
    "two tables": (
        making.constant("c", torch.empty(4, 12), "real/1", ("table", "table")),
        "c is planned of 2 tensors, not of one",
    ),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_complex_tensor_is_taken_or_refused_with_the_reason_when_a_plan_has_of_it(
    what: str,
) -> None:
    constant, words = NUMBERS[what]
    assert verdict(Rotary(), (constant,)).summary == words


def test_a_complex_tensor_on_the_cpu_serves_a_component_elsewhere_and_no_other_tensor_does() -> (
    None
):
    module = Rotary()
    plan = (NUMBERS["its numbers"][0], making.constant("angles", torch.empty(24)))
    weights = Weights(module)
    slots = {path: weights.find(path) for c in plan for path in c.sources}
    judge = Judge(plan, weights, torch.device("meta"), "float32")
    assert judge.judge(slots).reasons == ["angles is on cpu, not meta"]
    module.table = module.table.to("meta")
    assert verdict(module, plan[:1]).summary == "table is on meta, not cpu"


LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "contiguous": (lambda kernel: kernel, 0),
    "channels_last": (lambda kernel: kernel.to(memory_format=torch.channels_last), 0),
    "transposed": (lambda kernel: kernel.transpose(0, 1), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_1x1_kernel_stays_where_it_is_unless_its_elements_are_out_of_order(layout: str) -> None:
    change, moves = LAYOUTS[layout]
    module = quantized.stock()
    module.mix.weight.data = change(module.mix.weight.data)
    found = verdict(module, (viewed((16, 16), "mix.weight"),))
    assert (found.summary, len(found.moves)) == (None, moves)
    before = module.mix.weight.clone()
    for move in found.moves:
        move()
    assert torch.equal(module.mix.weight, before)
    assert module.mix.weight.view(16, 16).is_contiguous()
