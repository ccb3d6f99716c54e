from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from aotbuild.loaders.watch import Watch
from aotbuild.loaders.weights import Weights


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1), nn.Conv2d(2, 2, 3))


def watching(module: nn.Module, counted: tuple[torch.Tensor, ...] = ()) -> Watch:
    weights = Weights(module)
    found = [weights.find(name) for name, _ in module.named_parameters()]
    return Watch([slot for slot in found if slot is not None], counted)


def one_element_replaced_by_its_equal(module: nn.Sequential) -> None:
    module[1].bias = nn.Parameter(module[1].bias.detach().clone())


def equal_matrix(module: nn.Sequential) -> None:
    module[0].weight = nn.Parameter(module[0].weight.detach().clone())


def same_memory(module: nn.Sequential) -> None:
    module[0].weight = nn.Parameter(module[0].weight.detach())


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "one element, equal": one_element_replaced_by_its_equal,
    "an equal matrix": equal_matrix,
    "the same memory": same_memory,
    "p.data": lambda m: setattr(m[0].bias, "data", torch.zeros(4)),
    "a transposed square": lambda m: setattr(m[0].weight, "data", m[0].weight.data.t()),
    "channels_last": lambda m: m.to(memory_format=torch.channels_last),
    "a bias taken away": lambda m: setattr(m[0], "bias", None),
    "swapped under the same name": lambda m: torch.utils.swap_tensors(
        m[0].bias, nn.Parameter(torch.zeros(4))
    ),
}


def test_nothing_is_reported_when_values_change_in_place() -> None:
    module = net()
    watch = watching(module)
    assert watch.matches()
    with torch.no_grad():
        module[0].weight.mul_(2)
    assert watch.matches()


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen_when_it_is(what: str) -> None:
    module = net()
    watch = watching(module)
    CHANGES[what](module)
    assert not watch.matches()


def test_changes_in_place_are_seen_of_the_tensors_that_are_counted_alone() -> None:
    module = net()
    watch = watching(module, (module[0].weight,))
    with torch.no_grad():
        module[2].weight.mul_(2)
        assert watch.matches()
        module[0].weight.mul_(2)
        assert not watch.matches()


def test_a_tensor_of_inference_mode_is_watched_without_a_count() -> None:
    module = net()
    with torch.inference_mode():
        module[0].weight = nn.Parameter(torch.zeros(4, 4))
    watch = watching(module, (module[0].weight,))
    assert watch.matches()
    module[0].weight.data = torch.zeros(4, 4)
    assert not watch.matches()
