"""The sentence that says how to cover a call which no artifact covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from artifacts import dynamic_signature, exact_signature, make_manifest

from aotbuild.cache.manifest import Manifest
from aotbuild.loaders.advice import advise, range_of

CALL = {
    "resolution": "64x64",
    "batch": 1,
    "multiple_px": 64,
    "variants": {"guided": {"optional": False}, "unguided": {"optional": True}},
}
RECIPE = {"name": "sd15", "dtype": "fp32", "call": CALL}


def exact() -> Manifest:
    return make_manifest(signature=exact_signature(), recipe=RECIPE)


def dynamic() -> Manifest:
    rehearsal = {"dynamic": ["64x64", "256x256"]}
    return replace(
        make_manifest(signature=dynamic_signature(), recipe=RECIPE),
        provenance={"rehearsal": rehearsal},
    )


@pytest.mark.parametrize(
    ("manifest", "shape", "said"),
    [
        (exact(), (2, 4, 16, 24), "--dtype fp32 --resolution 192x128 --batch 1"),
        (exact(), (8, 4, 8, 8), "--resolution 64x64 --batch 4"),
        (exact(), (1, 4, 8, 8), "--resolution 64x64 --batch 1 --variant all"),
        (exact(), (2, 4, 9, 8), "sizes are multiples of 64 pixels"),
        (dynamic(), (2, 4, 40, 40), "--resolution 320x320 --batch 1"),
        (dynamic(), (2, 4, 41, 40), "sizes are multiples of 64 pixels"),
    ],
)
def test_advice_names_what_would_cover_the_call_when_no_artifact_does(
    manifest: Manifest, shape: tuple[int, ...], said: str
) -> None:
    assert advise([manifest], {"sample": torch.empty(shape)}).partition(said)[1] == said


def test_range_is_named_in_pixels_when_an_artifact_has_one() -> None:
    assert range_of(dynamic()) == ", for 64x64 to 256x256 in steps of 64 pixels"
    assert range_of(exact()) == ""


@pytest.mark.parametrize(
    ("recipe", "provenance"),
    [
        ({}, {}),
        ({"call": None}, {"rehearsal": None}),
        ({"call": {"multiple_px": -1, "variants": 3}}, {"rehearsal": {"dynamic": "x"}}),
        (
            {"call": {"multiple_px": "8", "resolution": "8x8", "variants": {"a": 1}}},
            {"rehearsal": {"dynamic": [1, 2, 3]}},
        ),
    ],
)
def test_advice_is_a_command_still_when_the_manifest_says_odd_things(
    recipe: dict[str, Any], provenance: dict[str, Any]
) -> None:
    manifest = make_manifest(recipe=recipe, provenance=provenance)
    assert "aotbuild build" in advise([manifest], {"sample": torch.empty(2, 4, 8, 8)})
    assert range_of(manifest) == ""
