from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from aotbuild.loaders.blocks import find_blocks, identify_block

from . import nets


class Odd(nn.Module):
    """Attributes that decide what it computes, and that no scalar shows."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        for name, value in attributes.items():
            setattr(self, name, value)


class Settings:
    def __init__(self, mode: str) -> None:
        self.mode = mode


def scaled(factor: float) -> Any:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


def test_blocks_are_found_by_class_and_those_inside_others_left_out() -> None:
    unet = nets.unet()
    found = find_blocks(unet, {"BasicTransformerBlock"})
    assert len(found) == sum(type(m).__name__ == "BasicTransformerBlock" for m in unet.modules())
    assert all(unet.get_submodule(path) is block for path, block in found.items())
    outer = find_blocks(unet, {"BasicTransformerBlock", "Transformer2DModel"})
    assert {type(block).__name__ for block in outer.values()} == {"Transformer2DModel"}


def test_a_block_is_found_once_when_it_stands_at_two_paths() -> None:
    block = nn.Linear(1, 1)
    assert list(find_blocks(nn.ModuleList([block, block]), {"Linear"})) == ["0"]


def test_the_module_itself_is_the_block_when_it_is_of_the_class() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(1, 1)))
    assert list(find_blocks(module, {"Sequential"})) == [""]


def test_identity_is_the_same_when_only_values_differ() -> None:
    assert identify_block(nets.net(1)) == identify_block(nets.net(2))
    with torch.device("meta"):
        empty = nets.Net()
    assert identify_block(empty) == identify_block(nets.net())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (torch.relu, torch.tanh),
        (functools.partial(torch.clamp, min=0), functools.partial(torch.clamp, min=1)),
        (scaled(1.0), scaled(2.0)),
        ({"a": 1}, {"a": 2}),
        ([{"a": 1}], [{"a": 2}]),
        ({"a", "b"}, {"a", "c"}),
        (Settings("fast"), Settings("slow")),
        (nn.ReLU, nn.GELU),
        (float("inf"), {"a": float("inf")}),
    ],
)
def test_identity_differs_when_an_attribute_does_that_decides_the_code(
    ours: Any, theirs: Any
) -> None:
    assert identify_block(Odd(value=ours)) == identify_block(Odd(value=ours))
    assert identify_block(Odd(value=ours)) != identify_block(Odd(value=theirs))


def test_identity_says_nothing_of_plain_attributes_as_the_state_does() -> None:
    assert set(identify_block(Odd(eps=1e-5, sizes=(1, 2))).config) == {"weights"}
