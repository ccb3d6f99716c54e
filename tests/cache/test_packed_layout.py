from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from aotbuild.cache.manifest import Constant
from aotbuild.cache.packed_layout import (
    ALIGNMENT_BYTES,
    Layout,
    fault,
    layout_of,
    memory_order,
    memory_shape,
)


def constant(name: str, *shape: int, dtype: str = "float32", **changes: Any) -> Constant:
    stride, step = [], 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= size
    fields: dict[str, Any] = {"rule": "tensor/1", "sources": (name,), "stride": tuple(stride)}
    return Constant(name=name, shape=shape, dtype=dtype, **{**fields, **changes})


PLAN = (
    constant("b.weight", 3, 5),
    constant("a.bias", 7, dtype="bfloat16"),
    constant("scalar"),
    constant("empty", 0, 4),
    constant("kernel", 8, 4, 3, 3, stride=(36, 1, 12, 4)),
    constant("table", 2, rule="stored/1", sources=(), value=(0.5, 1.0)),
)


def written(layout: Layout, path: Path) -> Path:
    path.write_bytes(layout.head + bytes(layout.bytes - len(layout.head)))
    return path


def test_layout_is_safetensors_when_read_by_its_own_library(tmp_path: Path) -> None:
    path = written(layout_of(PLAN), tmp_path / "constants.safetensors")

    with safe_open(path, framework="pt") as file:
        names = [n for n in file.keys() if not n.startswith("pad.")]  # noqa: SIM118
        assert sorted(names) == ["a.bias", "b.weight", "empty", "kernel", "scalar"]
        assert file.get_tensor("a.bias").shape == (7,)
        assert file.get_tensor("kernel").shape == (8, 3, 3, 4)
        assert file.metadata() == {"format": "aotbuild/1"}


def test_layout_aligns_every_constant_when_sizes_are_odd() -> None:
    layout = layout_of(PLAN)

    assert [p.constant.name for p in layout.places] == sorted(
        p.constant.name for p in layout.places
    )
    assert all(p.begin % ALIGNMENT_BYTES == 0 for p in layout.places)
    assert len(layout.head) % ALIGNMENT_BYTES == layout.bytes % ALIGNMENT_BYTES == 0


def test_layout_is_the_same_when_the_plan_is_in_another_order() -> None:
    assert layout_of(reversed(PLAN)) == layout_of(PLAN)


def test_memory_order_follows_the_strides_when_they_are_permuted() -> None:
    kernel = constant("kernel", 8, 4, 3, 3, stride=(36, 1, 12, 4))

    assert memory_order(kernel) == (0, 2, 3, 1)
    assert memory_shape(kernel) == (8, 3, 3, 4)
    assert memory_order(constant("c", 1, 4, 1, 1, stride=(4, 1, 1, 1))) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (constant("a", 4, 4, stride=(0, 1)), "strides"),
        (constant("a", 4, 4, stride=(8, 1)), "strides"),
        (constant("a", 4, dtype="complex64"), "complex64"),
        (constant("pad.1", 4), "there twice"),
        (constant("__metadata__", 4), "can't be a packed"),
    ],
)
def test_layout_is_refused_when_a_constant_cannot_be_packed(broken: Constant, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout_of((constant("a0", 3), constant("a1", 3), broken))


def changed(entry: str, **changes: Any) -> bytes:
    """The head with one entry of its header changed, of the same length where that can be."""
    head = layout_of(PLAN).head
    document = json.loads(head[8:])
    document[entry].update(changes)
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return head[:8] + text.ljust(len(head) - 8)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (changed("a.bias", data_offsets=[0, 99999]), "a.bias"),  # outside
        (changed("b.weight", data_offsets=[0, 60]), "b.weight"),  # overlapping
        (changed("b.weight", data_offsets=[66, 126]), "b.weight"),  # misaligned
        (changed("b.weight", data_offsets=[-4, 56]), "b.weight"),
        (changed("b.weight", shape=[5, 3]), "b.weight"),
        (changed("b.weight", dtype="I32"), "b.weight"),
        (changed("__metadata__", format="aotbuild/2"), "__metadata__"),
        (b"\xff" * 8 + layout_of(PLAN).head[8:], "another length"),
        (layout_of(PLAN).head[:8] + b"{" * (len(layout_of(PLAN).head) - 8), "isn't JSON"),
        (layout_of(PLAN).head[:8] + b"[]".ljust(len(layout_of(PLAN).head) - 8), "isn't an object"),
        (layout_of(PLAN).head[:40], "isn't JSON"),
        (b"", "another length"),
    ],
)
def test_header_is_refused_when_it_is_not_the_plans(head: bytes, message: str) -> None:
    assert message in str(fault(head, layout_of(PLAN)))
    assert fault(layout_of(PLAN).head, layout_of(PLAN)) is None
