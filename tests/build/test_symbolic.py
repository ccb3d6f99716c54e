"""`int(length)` in a model's code, while its length stands for a whole range."""

from __future__ import annotations

import builtins

import torch
from torch import nn

from aotbuild.build.symbolic import symbolic_int


class Cut(nn.Module):
    """Takes as many rows of a table as its input has, by way of `int`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(64.0).reshape(32, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = int(x.shape[0])
        assert isinstance(int("7"), int)
        assert isinstance(True, int)
        assert not isinstance("7", int)
        return x + self.table[:length]


def test_length_stays_symbolic_when_the_model_says_int() -> None:
    module = Cut()
    shapes = {"x": {0: torch.export.Dim("n", min=2, max=32)}}
    with symbolic_int(module):
        program = torch.export.export(
            module, (torch.zeros(5, 2),), strict=False, dynamic_shapes=shapes
        )
    for rows in (2, 5, 32):
        assert torch.equal(program.module()(torch.zeros(rows, 2)), module.table[:rows])


def test_int_is_pythons_own_when_the_export_is_over() -> None:
    module = Cut()
    with symbolic_int(module):
        assert int is not builtins.int
        assert int(2.5) == 2
        assert int("11", 2) == 3
        assert issubclass(bool, int)
    assert int is builtins.int
    with symbolic_int(nn.Linear(2, 2)):
        assert "int" not in vars(nn.modules.linear)
