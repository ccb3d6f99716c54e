from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from artifacts import dynamic_signature, exact_signature, spec

from aotbuild.cache.signature import Signature, TensorSpec, flatten, parse_extent


@pytest.mark.parametrize("signature", [exact_signature(), dynamic_signature()])
def test_signature_is_the_same_when_written_and_read(signature: Signature) -> None:
    assert Signature.from_json(signature.to_json()) == signature


def test_slug_differs_when_an_input_or_a_static_leaf_does() -> None:
    exact = exact_signature()
    other_input = replace(exact, inputs=(*exact.inputs, spec("mask", 2)))
    other_leaf = replace(exact, static=(exact.static[0], ("return_dict", True)))

    assert exact.slug.startswith("2x4x8x8-float32-")
    assert dynamic_signature().slug.startswith("2x4x8hx8w-float32-")
    assert len({exact.slug, other_input.slug, other_leaf.slug}) == 3


@pytest.mark.parametrize(
    ("extent", "parsed"), [(8, (8, None)), (0, (0, None)), ("8*h", (8, "h")), ("1*n2", (1, "n2"))]
)
def test_extent_is_read_when_it_is_a_size_or_a_multiple(extent: Any, parsed: Any) -> None:
    assert parse_extent(extent) == parsed


@pytest.mark.parametrize("extent", [-1, True, 8.0, "h", "0*h", "8*", "8*H", "8*h+1", None])
def test_extent_is_refused_when_it_is_neither(extent: Any) -> None:
    with pytest.raises(ValueError, match="extent"):
        parse_extent(extent)


def test_answer_may_be_an_output_object_and_a_call_may_not() -> None:
    entry = ("", {"object": ["library.outputs.Decoded", "sample"]})
    signature = replace(exact_signature(), returns=(entry,))
    assert Signature.from_json(signature.to_json()) == signature
    with pytest.raises(ValueError, match="neither a leaf nor a container"):
        replace(exact_signature(), static=(entry,))


@pytest.mark.parametrize(
    "named",
    [[], "library.Decoded", ["Decoded"], ["library.Decoded()"], ["a.B", "x.y"], ["a.B", 1], [None]],
)
def test_output_object_is_refused_when_it_names_no_class_and_fields(named: Any) -> None:
    with pytest.raises(ValueError, match=r"object|class and its fields|field of no plain name"):
        replace(exact_signature(), returns=(("", {"object": named}),))


def test_signature_is_refused_when_it_does_not_hold_together() -> None:
    with pytest.raises(ValueError, match="symbol 'h' has no range"):
        replace(dynamic_signature(), symbols=(("w", 1, 4),))
    with pytest.raises(ValueError, match="is empty"):
        replace(dynamic_signature(), symbols=(("h", 4, 1), ("w", 1, 4)))
    with pytest.raises(ValueError, match="sorted"):
        replace(exact_signature(), static=(("b", 1), ("a", 2)))
    with pytest.raises(ValueError, match="1 strides for 2 dims"):
        TensorSpec(path="x", shape=(1, 2), dtype="float32", stride=(1,), device="cpu")


def test_flatten_tells_containers_and_leaves_apart_when_they_look_alike() -> None:
    call = {"b": [1, (True,)], "a": {}, "c": None}

    assert list(flatten(call)) == [
        ("", {"dict": ["a", "b", "c"]}),
        ("a", {"dict": []}),
        ("b", {"list": 2}),
        ("b.0", 1),
        ("b.1", {"tuple": 1}),
        ("b.1.0", True),
        ("c", None),
    ]
    with pytest.raises(ValueError, match="without dots"):
        list(flatten({"a.b": 1}))
