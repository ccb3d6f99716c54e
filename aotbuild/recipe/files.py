"""Finds recipes and the configs of their components: those that ship, and files of one's own."""

from __future__ import annotations

import difflib
import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from aotbuild.canonical import parse_json
from aotbuild.errors import RecipeError
from aotbuild.recipe.document import Recipe, parse_recipe


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that ship with aotbuild, sorted."""
    files = (f.name for f in _data().iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in files if n.endswith(".toml")))


def load_recipe(name_or_path: str) -> Recipe:
    """The shipped recipe of that name, or the one in that TOML file.

    A relative path to configs in the file starts at the file's own folder.

    Raises:
        RecipeError: no such recipe (with the nearest name), or what is wrong in it, and where.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        file: Traversable | Path = Path(name_or_path).expanduser()
        if not file.is_file():
            raise RecipeError(
                f"No recipe file at {name_or_path}. `aotbuild recipes` lists those that ship."
            )
    else:
        file = _data() / f"{name_or_path}.toml"
        if name_or_path not in recipe_names():
            lower = name_or_path.lower()
            near = difflib.get_close_matches(lower, recipe_names(), n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise RecipeError(
                f"Unknown recipe {name_or_path!r}. {hint}`aotbuild recipes` lists them all; "
                "a path to your own TOML file works too."
            )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RecipeError(f"Recipe {name_or_path} can't be read as UTF-8 text: {e}.") from e
    recipe = parse_recipe(text, where=name_or_path)
    if not isinstance(file, Path):
        return recipe
    parent = file.resolve().parent
    return recipe.with_folders(lambda architecture: _absolute(architecture, parent))


def _absolute(architecture: str, parent: Path) -> str:
    """`architecture`, made absolute from `parent` if it is a relative path."""
    folder = Path(architecture).expanduser()
    if "/" not in architecture or folder.is_absolute():
        return architecture
    return str((parent / folder).resolve())


def recipe_configs(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The configs of all components of `recipe` by name, from wherever it says that they are.

    Raises:
        RecipeError: no such folder, no config of a component there, or one that isn't JSON.
    """
    configs = load_configs(recipe.architecture)
    for name, component in recipe.components.items():
        if component.architecture is not None:
            configs[name] = _component_config(name, component.architecture)
    return configs


def _component_config(name: str, architecture: str) -> dict[str, Any]:
    """Of a folder with `<name>.json`, or of a checkpoint of that component alone."""
    found = load_configs(architecture)
    if name not in found and "config" not in found:
        raise RecipeError(
            f"components.{name}: neither {name}.json nor config.json is in {architecture!r}; "
            f"there are {', '.join(sorted(found)) or 'no configs'}."
        )
    return found.get(name) or found["config"]


def load_configs(architecture: str) -> dict[str, dict[str, Any]]:
    """Component configs by component name, of a shipped architecture or a diffusers folder.

    Reads `<name>.json`, and `<name>/config.json` (`scheduler/scheduler_config.json`) as diffusers
    lays a checkpoint out. `model_index` is among them where there is one.

    Raises:
        RecipeError: no such architecture or folder, or a config that isn't a JSON object.
    """
    folder: Traversable | Path = Path(architecture).expanduser()
    if "/" not in architecture:
        folder = _data() / "architectures" / architecture
    if not folder.is_dir():
        raise RecipeError(
            f"No component configs at {architecture!r}: neither a shipped architecture nor a "
            "diffusers folder. `aotbuild recipes` lists the shipped ones."
        )
    found: dict[str, dict[str, Any]] = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        file = entry
        if entry.is_dir():
            named = (
                entry / n
                for n in ("config.json", f"{entry.name}_config.json", "scheduler_config.json")
            )
            file = next((f for f in named if f.is_file()), entry)
        if file.name.endswith(".json") and file.is_file():
            found[entry.name.removesuffix(".json")] = _read_config(file)
    return found


def _read_config(file: Traversable | Path) -> dict[str, Any]:
    try:
        config = parse_json(file.read_text("utf-8"))
    except (ValueError, OSError) as e:
        raise RecipeError(f"{file} isn't JSON: {e}.") from e
    if not isinstance(config, dict):
        raise RecipeError(
            f"{file} holds {json.dumps(config)[:40]}, where a config is a JSON object, as "
            "diffusers' save_pretrained writes it."
        )
    return config


def _data() -> Traversable:
    return resources.files("aotbuild.recipes")
