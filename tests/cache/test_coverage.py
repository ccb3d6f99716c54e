from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from artifacts import CPU, GPU, make_manifest

from aotbuild.cache.coverage import Machine, select, serves
from aotbuild.cache.item import Item, describe

A100 = Machine(device="cuda", arch="sm_80", shared_memory_bytes=163 << 10)
L4 = Machine(device="cuda", arch="sm_89", shared_memory_bytes=99 << 10)
H100 = Machine(device="cuda", arch="sm_90", shared_memory_bytes=227 << 10)
LAPTOP = Machine(device="cpu", arch="x86-64-v4")
RECIPE = {"name": "sdxl", "dtype": "bf16", "call": {"resolution": "1024x768", "batch": 1}}


def item(**changes: Any) -> Item:
    return describe(make_manifest(**{"recipe": RECIPE, **changes}), {}, ())


def test_machine_takes_what_would_run_on_it() -> None:
    gpu, cpu = item(target=GPU), item(target=CPU)
    greedy = item(target=replace(GPU, shared_memory_bytes=120 << 10))
    nightly = item(target=replace(GPU, torch="2.14.0.dev20261101+cu130"))

    def keys(machine: Machine) -> list[Item]:
        return list(select([gpu, cpu, greedy, nightly], machine=machine))

    assert keys(A100) == [gpu, greedy, nightly]
    assert keys(L4) == [gpu, nightly]
    assert keys(H100) == []
    assert keys(LAPTOP) == [cpu]


@pytest.mark.parametrize(
    ("resolution", "size", "expected"),
    [
        ("1024x768", (1024, 768), True),
        ("1024x768", (768, 1024), False),
        ("768x512:1280x1024", (1280, 512), True),
        ("768x512:1280x1024", (512, 768), False),
        (None, (512, 512), False),
    ],
)
def test_size_is_served_when_it_was_built_for(
    resolution: str | None, size: tuple[int, int], expected: bool
) -> None:
    call = {"resolution": resolution, "batch": 1}
    assert serves(item(recipe={"name": "x", "call": call}), *size) is expected


def test_range_of_a_dynamic_build_stands_in_what_it_covers() -> None:
    rehearsal = {"dynamic": ["768x512", "1280x1024"], "variant": "guided"}
    found = item(provenance={"rehearsal": rehearsal}).covers
    assert found.resolution == "768x512:1280x1024"
    assert found.variant == "guided"


def test_select_takes_what_all_arguments_name() -> None:
    first, second = item(salt="a"), item(salt="b", target=GPU, component="vae.decode")

    assert list(select([first, second], keys=[f" {first.key[:9].upper()}"])) == [first]
    assert list(select([first, second], recipe="sdxl", component="vae")) == [second]
    assert list(select([first, second], component="va")) == []
    assert list(select([first, second], recipe="sd15")) == []
    assert list(select([first, second], size=(1024, 768), machine=A100)) == [second]
