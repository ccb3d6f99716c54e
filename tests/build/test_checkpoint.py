"""A checkpoint that the recipe isn't for: what the rehearsal's error says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotbuild.build.checkpoint import resolve_checkpoint
from aotbuild.build.plan import plan
from aotbuild.build.request import BuildRequest
from aotbuild.errors import AotbuildError, RecipeError, SourceError
from aotbuild.recipe import load_configs, load_recipe


def checkpoint(folder: Path, index: str) -> str:
    """The configs of `tiny` as a diffusers folder whose index names the pipeline class `index`."""
    for name, config in load_configs("tiny").items():
        file = "scheduler_config.json" if name == "scheduler" else "config.json"
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_text(json.dumps(config))
    (folder / "model_index.json").write_text(json.dumps({"_class_name": index}))
    return str(folder)


def failure(recipe: str, folder: str, store: Path) -> str:
    loaded = load_recipe(recipe)
    request = BuildRequest(
        recipe=loaded,
        gpu="cpu",
        resolutions=(loaded.call.resolution,),
        batches=(1,),
        checkpoint=folder,
        store=store,
    )
    with pytest.raises(AotbuildError) as caught:
        plan(request)
    return str(caught.value)


def test_error_names_the_checkpoints_class_when_the_recipe_is_for_another(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "sdxl", "StableDiffusionXLPipeline")
    said = failure("sd15", folder, tmp_path)
    assert "is for StableDiffusionXLPipeline, and recipe sd15 runs StableDiffusionPipeline" in said


def test_error_says_no_more_than_the_rehearsals_when_the_class_is_the_recipes(
    tmp_path: Path,
) -> None:
    folder = checkpoint(tmp_path / "sd", "StableDiffusionPipeline")
    assert "is for StableDiffusionPipeline" not in failure("sd15", folder, tmp_path)


def test_checkpoint_is_refused_when_there_is_no_such_folder() -> None:
    with pytest.raises(RecipeError, match=r"There is no folder \./none"):
        resolve_checkpoint(load_recipe("tiny"), "./none")


def test_both_readings_are_named_when_a_checkpoint_is_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match=r"no folder \./nope.* the Hub.* can't be fetched"):
        resolve_checkpoint(load_recipe("tiny"), "nope")
