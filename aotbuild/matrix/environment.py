"""What decides a key beside the cell: versions, the C++ compiler, what the recipe says."""

from __future__ import annotations

from aotbuild import probe
from aotbuild.build.host import find_toolchain
from aotbuild.canonical import digest
from aotbuild.errors import RecipeError
from aotbuild.recipe import load_recipe, recipe_configs

PACKAGES = ("torch", "triton", "diffusers", "torchao")


def environment() -> dict[str, str | None]:
    """By name, as this machine has them.

    Raises:
        ToolchainError: there is no C++ compiler.
    """
    toolchain = find_toolchain().to_json()
    return {**probe.installed(PACKAGES), **toolchain, "aotbuild": probe.version_of("aotbuild")}


def recipe_digest(name: str) -> str:
    """Of all that the recipe, by name or path, says now, with the configs of its components."""
    recipe = load_recipe(name)
    try:
        configs = recipe_configs(recipe)
    except RecipeError:  # its build says so
        configs = {}
    return digest([recipe.to_json(), configs])
