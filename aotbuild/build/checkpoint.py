"""`--checkpoint`: a diffusers folder or Hub repository whose configs decide. Reads no weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aotbuild.errors import RecipeError, UsageError
from aotbuild.recipe import Recipe

CONFIG_FILES = ["model_index.json", "*/config.json", "*/*_config.json"]


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
    if checkpoint.startswith(("/", "./", "../", "~")) or Path(checkpoint).is_dir():
        folder, name, revision = Path(checkpoint).expanduser().absolute(), None, None
    else:
        folder, revision = download_configs(checkpoint)
        name = checkpoint
    if not (folder / "model_index.json").is_file():
        raise RecipeError(
            f"--checkpoint {checkpoint}: no model_index.json in {folder}; a diffusers checkpoint "
            "has one. Convert single files with diffusers' from_single_file and save_pretrained."
        )
    return replace(recipe, architecture=str(folder), checkpoint=name, revision=revision)


def download_configs(repository: str) -> tuple[Path, str]:
    """(folder, commit) of a Hub repository's configs, in the Hub's own cache.

    Raises:
        UsageError: there is no such repository, or the Hub can't be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repository, allow_patterns=CONFIG_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as e:
        raise UsageError(
            f"--checkpoint {repository}: neither a folder here nor a Hub repository that could be "
            f"read: {e}. For a local folder write ./{repository}."
        ) from e
    return folder, folder.name
