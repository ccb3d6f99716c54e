"""`recipes new`: drafts from the configs that ship, laid out as checkpoints are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aotbuild.cli import main
from aotbuild.commands.draft import draft_recipe
from aotbuild.errors import RecipeError
from aotbuild.recipe import load_configs, load_recipe, recipe_names


def lay_out(architecture: str, folder: Path) -> Path:
    """A diffusers folder with the configs of a shipped architecture, and no weights."""
    for name, config in load_configs(architecture).items():
        if name == "model_index":
            path = folder / "model_index.json"
        else:
            stem = "scheduler_config" if "scheduler" in name else "config"
            path = folder / name / f"{stem}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ["sd15", "sdxl"])
def test_draft_says_what_the_shipped_recipe_says_when_the_family_is_known(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out(name, tmp_path / "checkpoints" / "Mine_v2")
    assert main(["recipes", "new", "checkpoints/Mine_v2"]) == 0
    drafted, shipped = load_recipe("./mine-v2.toml"), load_recipe(name)
    assert drafted.pipeline == shipped.pipeline
    assert drafted.call.tensors == shipped.call.tensors
    assert drafted.call.resolution == shipped.call.resolution
    assert drafted.call.multiple_px == shipped.call.multiple_px
    assert set(drafted.components) == set(shipped.components)
    for unit, component in drafted.components.items():
        assert set(component.methods) <= set(shipped.components[unit].methods)
    assert set(load_configs(drafted.architecture)) >= {"unet", "vae", "scheduler"}


@pytest.mark.parametrize(
    ("source", "out", "written"),
    [
        ("mine", "mine.toml", "./mine/"),
        ("deep/mine", "mine.toml", "./deep/mine/"),
        ("mine", "mine/mine.toml", "./"),
        ("mine", "deep/mine.toml", None),
    ],
)
def test_draft_names_its_configs_by_a_relative_path_when_they_lie_beside_or_below(
    source: str, out: str, written: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    lay_out("tiny", Path(source))
    assert main(["recipes", "new", source, "--out", out]) == 0
    absolute = f"{tmp_path / 'here' / source}/"
    assert f'architecture = "{written or absolute}"' in Path(out).read_text()
    if written:
        (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    moved = tmp_path / ("there" if written else "here") / out
    assert "unet" in load_configs(load_recipe(str(moved)).architecture)


def test_draft_says_what_each_table_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out("sdxl", tmp_path / "mine")
    assert main(["recipes", "new", "./mine"]) == 0
    lines = (tmp_path / "mine.toml").read_text().splitlines()
    headers = [i for i, line in enumerate(lines) if line.startswith("[")]
    assert len(headers) == 8
    assert all(lines[i - 1].startswith("# ") for i in headers)
    assert all(len(line) <= 100 for line in lines if line.startswith("#"))


def test_new_overwrites_nothing_when_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out("sd15", tmp_path / "mine")
    (tmp_path / "mine.toml").write_text("precious")
    assert main(["recipes", "new", "./mine"]) == 2
    assert "--out" in capsys.readouterr().err
    assert (tmp_path / "mine.toml").read_text() == "precious"


def test_draft_gives_the_pooled_width_when_the_transformer_wants_one() -> None:
    recipe = draft_recipe(load_configs("flux1-dev"), source="f", architecture="/f/", hub=False)
    assert recipe.call.tensors["pooled_prompt_embeds"].shape == ("batch", 768)
    assert recipe.components["transformer"].methods == ("forward",)


def test_draft_prepares_the_denoiser_where_its_recipe_has_to() -> None:
    for name in recipe_names():
        shipped = load_recipe(name)
        configs = load_configs(shipped.architecture)
        drafted = draft_recipe(configs, source="x", architecture="/x/", hub=False).components
        for component in drafted.keys() & shipped.components.keys():
            ours = shipped.components[component].preparations
            assert drafted[component].preparations == ours, name


def test_draft_is_refused_when_the_folder_holds_no_pipeline() -> None:
    with pytest.raises(RecipeError, match=r"model_index\.json"):
        draft_recipe({"unet": {}}, source="x", architecture="/x/", hub=False)


def test_draft_is_refused_when_there_is_no_denoiser() -> None:
    configs = {"model_index": {"_class_name": "P"}, "vae": {}}
    with pytest.raises(RecipeError, match="neither unet nor transformer"):
        draft_recipe(configs, source="x", architecture="/x/", hub=False)


ODD = {
    "a class that is no name": {"model_index": {"_class_name": ["P"]}, "unet": {}},
    "levels that are a number": {
        "model_index": {"_class_name": "P"},
        "unet": {"block_out_channels": 4},
    },
    "no width of the added embedding": {
        "model_index": {"_class_name": "P"},
        "unet": {"addition_embed_type": "text_time", "cross_attention_dim": 8},
    },
    "a size that is text": {
        "model_index": {"_class_name": "P"},
        "unet": {},
        "vae": {"sample_size": "big"},
    },
}


@pytest.mark.parametrize("what", ODD)
def test_draft_is_refused_when_a_config_holds(what: str) -> None:
    with pytest.raises(RecipeError, match="diffusers"):
        draft_recipe(ODD[what], source="x", architecture="/x/", hub=False)


def test_new_says_that_the_hub_is_out_of_reach_when_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aotbuild", "recipes", "new", "nobody/nothing-of-the-kind"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "can't be fetched from the Hub" in done.stderr
    assert "local diffusers folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.toml"))
