"""The constant plan has what a graph's answer comes of, however it comes of it, and no more."""

from __future__ import annotations

import torch
from torch import nn

from aotbuild.build.constants import constant_plan


class Filled(nn.Module):
    """Writes its answer part by part, as Wan's attention does; and what nobody reads, likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(4), persistent=False)
        self.weight = nn.Parameter(torch.rand(4))
        self.wasted = nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer, lost = torch.empty_like(x), torch.empty_like(x)
        first, second = answer.view(-1, 8).split(4, dim=1)
        first[:] = x[:, :4] * self.table
        second.copy_(x[:, 4:]).mul_(self.weight)
        lost[:, :4] = x[:, :4] * self.wasted
        return answer


def test_constants_are_planned_when_what_is_made_of_them_is_written_in_place() -> None:
    module = Filled().eval()
    with torch.no_grad():
        program = torch.export.export(module, (torch.rand(2, 8),), strict=False)
    plan = constant_plan(program, module)
    assert [c.name for c in plan.constants] == ["table", "weight"]
    assert plan.unused == ("wasted",)
