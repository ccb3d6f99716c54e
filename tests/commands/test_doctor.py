"""`doctor` on artifacts whose code calls operators of other packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from artifacts import stage

from aotbuild import probe
from aotbuild.cache.key import PART_NAMES, key_of, make_parts
from aotbuild.cli import main


@pytest.mark.parametrize(
    ("package", "verdict", "reason"),
    [
        ("no-such-attention", "rejected", "no-such-attention>=1.0, not installed here"),
        ("diffusers", "accepted", ""),
    ],
)
def test_doctor_names_the_package_when_an_artifact_requires_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str, verdict: str, reason: str
) -> None:
    versions = {"requires": {package: ">=0.1" if package == "diffusers" else ">=1.0"}}
    parts = make_parts(
        {name: {"of": name} for name in PART_NAMES} | {"versions": versions, "weights": None}
    )
    stage(tmp_path, parts=parts, key=key_of(parts), target=probe.this_machine("cpu"))
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["artifacts"]
    assert found["verdict"] == verdict
    assert reason in " ".join(found["reasons"])
