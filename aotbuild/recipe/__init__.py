"""Recipes: what to build from a checkpoint, as data; TOML in, dataclasses out. Builds nothing."""

from aotbuild.recipe.call import (
    CallRecipe,
    LengthRecipe,
    Scalar,
    TensorRecipe,
    VariantRecipe,
    check_resolution,
    parse_resolution,
)
from aotbuild.recipe.component import QUANTIZATIONS, ComponentRecipe, Int8Filter
from aotbuild.recipe.document import DTYPES, FORMAT, Recipe, parse_recipe
from aotbuild.recipe.files import load_configs, load_recipe, recipe_configs, recipe_names

__all__ = [
    "DTYPES",
    "FORMAT",
    "QUANTIZATIONS",
    "CallRecipe",
    "ComponentRecipe",
    "Int8Filter",
    "LengthRecipe",
    "Recipe",
    "Scalar",
    "TensorRecipe",
    "VariantRecipe",
    "check_resolution",
    "load_configs",
    "load_recipe",
    "parse_recipe",
    "parse_resolution",
    "recipe_configs",
    "recipe_names",
]
