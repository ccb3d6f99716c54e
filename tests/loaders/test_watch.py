from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import aotbuild.build
from aotbuild.loaders.placement import Compare, compare_function, placement
from aotbuild.loaders.watch import Watch
from aotbuild.loaders.weights import Weights


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1), nn.Conv2d(2, 2, 3))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """The comparison that libraries carry, compiled by itself."""
    folder = tmp_path_factory.mktemp("placement")
    header = Path(aotbuild.build.__file__).with_name("placement.h")
    (folder / "empty.cpp").write_text("")
    torch_folder = Path(torch.__file__).parent
    command = ["g++", "-O2", "-shared", "-fPIC", "-include", header, folder / "empty.cpp"]
    command += ["-I", torch_folder / "include", "-L", torch_folder / "lib", "-ltorch_cpu"]
    subprocess.run([*command, "-o", folder / "placement.so"], check=True)
    compare = compare_function(ctypes.CDLL(str(folder / "placement.so")))
    assert compare is not None
    return compare


@pytest.fixture(params=["compiled", "interpreted"])
def compare(request: pytest.FixtureRequest) -> Compare | None:
    return request.getfixturevalue("compiled") if request.param == "compiled" else None


def watching(
    module: nn.Module, compare: Compare | None, counted: tuple[torch.Tensor, ...] = ()
) -> Watch:
    weights = Weights(module)
    found = [weights.find(name) for name, _ in module.named_parameters()]
    return Watch([slot for slot in found if slot is not None], counted, compare)


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


def test_nothing_is_reported_when_values_change_in_place(compare: Compare | None) -> None:
    module = net()
    watch = watching(module, compare)
    assert watch.matches()
    with torch.no_grad():
        module[0].weight.mul_(2)
    assert watch.matches()


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen_when_it_is(what: str, compare: Compare | None) -> None:
    module = net()
    watch = watching(module, compare)
    CHANGES[what](module)
    assert not watch.matches()


def test_changes_in_place_are_seen_of_the_tensors_that_are_counted_alone(
    compare: Compare | None,
) -> None:
    module = net()
    watch = watching(module, compare, (module[0].weight,))
    with torch.no_grad():
        module[2].weight.mul_(2)
        assert watch.matches()
        module[0].weight.mul_(2)
        assert not watch.matches()


def test_a_tensor_of_inference_mode_is_watched_without_a_count(compare: Compare | None) -> None:
    module = net()
    with torch.inference_mode():
        module[0].weight = nn.Parameter(torch.zeros(4, 4))
    watch = watching(module, compare, (module[0].weight,))
    assert watch.matches()
    module[0].weight.data = torch.zeros(4, 4)
    assert not watch.matches()


AT_THE_SAME_ADDRESS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cut": lambda t: t[:2],
    "a view": lambda t: t.view(6, 2),
    "as int32": lambda t: t.view(torch.int32),
    "expanded": lambda t: t[:1].expand(4, 3),
    "transposed": lambda t: t.t(),
}


@pytest.mark.parametrize("change", AT_THE_SAME_ADDRESS)
def test_compiled_comparison_sees_what_changed_when_the_address_stays(
    change: str, compiled: Compare
) -> None:
    tensor = torch.zeros(4, 3)
    unchanged = placement([torch.ones(2), tensor], compiled)
    assert unchanged()
    tensor.data = AT_THE_SAME_ADDRESS[change](tensor.data)
    assert not unchanged()


def test_placement_reads_the_tensor_that_is_there_when_two_were_swapped(compiled: Compare) -> None:
    tensor, other = torch.zeros(3), torch.ones(3)
    unchanged = placement([tensor], compiled)
    torch.utils.swap_tensors(tensor, other)
    del other
    assert not unchanged()


def test_placement_refuses_when_a_tensor_has_no_memory(compare: Compare | None) -> None:
    with pytest.raises(RuntimeError):
        placement([torch.zeros(2).to_sparse()], compare)
