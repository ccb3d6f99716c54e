"""A recipe written as TOML reads back as itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aotbuild.commands.toml import to_toml
from aotbuild.recipe import load_recipe, parse_recipe, recipe_names


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_comes_back_equal_when_written_and_read(name: str) -> None:
    recipe = load_recipe(name)
    assert parse_recipe(to_toml(recipe), where=name) == recipe


def test_text_comes_back_equal_when_it_needs_quoting() -> None:
    odd = 'quotes " and \\ back\\slashes\nlines\tand ünïcode \x01'
    recipe = replace(load_recipe("sd15"), title=odd)
    assert parse_recipe(to_toml(recipe), where="odd").title == odd


def test_table_names_come_back_equal_when_they_are_dotted() -> None:
    recipe = load_recipe("tiny")
    unet = replace(recipe.components["unet"], inductor={"cpp.threads": 2, "triton.x": True})
    changed = replace(recipe, components={**recipe.components, "unet": unet})
    assert parse_recipe(to_toml(changed), where="dotted") == changed


def test_comments_stand_above_their_tables_when_given() -> None:
    recipe = load_recipe("tiny")
    text = to_toml(recipe, {"": "One.\nTwo.", "call": "Three.", "components.unet": "Four."})
    assert text.startswith("# One.\n# Two.\nformat = 1\n")
    assert "\n\n# Three.\n[call]\n" in text
    assert "\n\n# Four.\n[components.unet]\n" in text
    assert parse_recipe(text, where="commented") == recipe


def test_defaults_are_left_out_when_nothing_differs() -> None:
    assert "quantization" not in to_toml(load_recipe("tiny"))
