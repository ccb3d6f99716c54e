"""What `plan` says of a filter: which layers it admits, and what of it fits none."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from aotbuild.cli import main


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """`tiny` with a filter of which half is another model's."""
    text = (resources.files("aotbuild.recipes") / "tiny.toml").read_text()
    old = 'skip_layers = ["time_embedding.*", "add_embedding.*", "*.time_emb_proj"]'
    assert old in text
    odd = """skip_layers = ["time_embedding.*", "adaln_single.*"]
skip_shapes = [[1280, 1280]]
pointwise_channels = [9999]"""
    path = tmp_path / "odd.toml"
    path.write_text(text.replace(old, odd))
    return str(path)


def test_plan_notes_what_of_a_filter_fits_no_layer(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["plan", recipe, "--gpu", "cpu", "--quant", "int8dq", "--store", str(tmp_path / "s")]
    assert main([*call, "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes == [
        "components.unet.int8.skip_shapes: no layer of these calls is [1280, 1280]",
        "components.unet.int8.skip_layers: no layer of these calls is adaln_single.*",
        "components.unet.int8.pointwise_channels: no layer of these calls is 9999",
    ]
    assert main(call) == 0
    assert capsys.readouterr().out.count("note: components.unet.int8.") == 3


def test_plan_notes_nothing_when_the_filter_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["plan", "tiny", "--gpu", "cpu", "--quant", "int8dq", "--store", str(tmp_path / "s")]
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
