"""Packages that an artifact's code calls: read from what describes it, and looked for."""

from __future__ import annotations

from typing import Any

import pytest
from artifacts import CPU, make_manifest

from aotbuild.cache.key import PART_NAMES, Part, key_of, make_parts
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.match import ModuleFacts, judge
from aotbuild.cache.requirements import missing, required
from aotbuild.target import Accepted

FLASH = {"flash-attn": ">=2.6.3"}


def requiring(requires: Any) -> Manifest:
    versions = {"diffusers": "0.42.1", "requires": requires}
    parts = make_parts(
        {name: {"of": name} for name in PART_NAMES} | {"versions": versions, "weights": None}
    )
    return make_manifest(parts=parts, key=key_of(parts))


@pytest.mark.parametrize(
    ("version", "wanted", "serves"),
    [
        ("2.6.3", ">=2.6.3", True),
        ("2.10.0.post1", ">=2.6.3", True),
        ("2.6.2", ">=2.6.3", False),
        ("3.0", ">=2.6.3,<3", False),
        ("2.9", ">=2.6.3, <3", True),
        ("0.1", "", True),
        ("1.0", "~=1.0", False),
        (None, "", False),
    ],
)
def test_package_serves_when_its_version_lies_in_the_range(
    version: str | None, wanted: str, serves: bool
) -> None:
    assert (not list(missing({"p": wanted}, {"p": version}))) is serves


def test_artifact_is_turned_down_when_a_package_of_its_operators_is_not_there() -> None:
    manifest = requiring(FLASH)
    for versions, reasons in (
        ({}, ("calls operators of flash-attn>=2.6.3, not installed",)),
        ({"flash-attn": "2.5.0"}, ("flash-attn>=2.6.3, and 2.5.0 is installed",)),
        ({"flash-attn": "2.8.1"}, ()),
    ):
        facts = ModuleFacts(
            identity=manifest.module,
            state=manifest.state,
            precision="float32",
            device="cpu",
            versions=versions,
        )
        verdict = judge(manifest, facts, CPU)
        said = () if isinstance(verdict, Accepted) else verdict.reasons
        assert len(said) == len(reasons)
        assert all(wanted in text for wanted, text in zip(reasons, said, strict=True))


@pytest.mark.parametrize("versions", [None, [], {}, {"requires": None}, {"requires": ["a"]}])
def test_nothing_is_required_when_nothing_sensible_says_so(versions: Any) -> None:
    assert required((Part.of("versions", versions),)) == {}


def test_requirements_are_known_from_the_index_when_a_collection_repeats_them() -> None:
    assert required(requiring(FLASH).parts) == FLASH
