"""`--checkpoint`: a diffusers folder or Hub repository whose configs decide. Reads no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aotbuild.cache.hub import fetch_configs
from aotbuild.errors import BuildError, RecipeError, SourceError
from aotbuild.recipe import Recipe


def local_folder(checkpoint: str | None) -> Path | None:
    """The folder that `checkpoint` names; None for a repository on the Hub, or where it is None.

    Raises:
        RecipeError: it is spelt like a folder, and there is none.
    """
    if checkpoint is None:
        return None
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        return folder.absolute()
    if checkpoint.startswith(("/", "./", "../", "~")):
        raise RecipeError(
            f"There is no folder {checkpoint}: --checkpoint takes a diffusers folder, or a "
            "repository ORG/NAME on the Hub."
        )
    return None


def resolve_checkpoint(recipe: Recipe, checkpoint: str | None) -> Recipe:
    """`recipe` with the configs of `checkpoint` as its architecture, and its name and revision.

    Args:
        checkpoint: None leaves the recipe's own; a folder that holds `model_index.json`; or a Hub
            repository, of which the configs alone are downloaded.

    Raises:
        RecipeError: no diffusers checkpoint there.
    """
    if checkpoint is None:
        return recipe
    local = local_folder(checkpoint)
    if local is not None:
        folder, name, revision = local, None, None
    else:
        try:
            folder, name = fetch_configs(checkpoint), checkpoint
        except SourceError as e:
            raise SourceError(
                f"--checkpoint {checkpoint}: there is no folder ./{checkpoint}, so that it was "
                f"taken as a repository on the Hub. {e}"
            ) from e
        revision = folder.name
    if not (folder / "model_index.json").is_file():
        raise RecipeError(
            f"--checkpoint {checkpoint}: no model_index.json in {folder}; a diffusers checkpoint "
            "has one. Convert single files with diffusers' from_single_file and save_pretrained."
        )
    return replace(recipe, architecture=str(folder), checkpoint=name, revision=revision)


@contextmanager
def naming_its_class(
    checkpoint: str | None, recipe: Recipe, configs: Mapping[str, Mapping[str, Any]]
) -> Iterator[None]:
    """Add to a rehearsal's error that `checkpoint` is for a pipeline the recipe doesn't run.

    Args:
        recipe: the whole one, with all its variants. configs: those of the checkpoint.

    Raises:
        RecipeError, BuildError: the one that was raised inside.
    """
    try:
        yield
    except (RecipeError, BuildError) as e:
        theirs = configs.get("model_index", {}).get("_class_name")
        if checkpoint is None or theirs is None or theirs in recipe.pipelines:
            raise
        raise type(e)(
            f"{e} The checkpoint {checkpoint} is for {theirs}, and recipe {recipe.name} runs "
            f"{' and '.join(recipe.pipelines)}: `aotbuild recipes` lists recipes for others."
        ) from e
