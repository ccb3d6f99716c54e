"""A small version of every shipped recipe's pipeline equals eager, and every swapped call hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from small import (
    ROWS,
    build_small,
    checkpointed_pipeline,
    picture,
    small_recipe,
    swap_scheduler,
)
from tiny import fallbacks

import aotbuild
from aotbuild.build.rehearse import unit_labels
from aotbuild.build.verify import relative_l2
from aotbuild.cache.store import Store
from aotbuild.recipe import Recipe, recipe_names

TOLERANCE = 1e-4
"""Relative L2 of the result in float32: `FLOOR` for one call, after two steps and guidance."""


@dataclass(frozen=True)
class Small:
    """A small recipe, the checkpoint's folder, and the store that has all of its artifacts."""

    recipe: Recipe
    checkpoint: Path
    store: Path

    def pipeline(self, variant: str) -> Any:
        return checkpointed_pipeline(self.recipe.vary(variant), self.checkpoint)

    def load(self, pipeline: Any) -> aotbuild.Loaded:
        return aotbuild.load(
            pipeline,
            self.store,
            store=self.store,
            components=unit_labels(self.recipe),
            fallback="error",
            self_check=False,
        )


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Small]:
    """A recipe by name; built once, in one store, as recipes share units."""
    root, made = tmp_path_factory.mktemp("small"), {}

    def make(name: str) -> Small:
        if name not in made:
            recipe = small_recipe(name, root / name)
            build_small(recipe, root / "store")
            made[name] = Small(recipe, root / f"{name}-weights", root / "store")
        return made[name]

    return make


def rows(field: str | None = None, quick: tuple[str, ...] = ()) -> list[Any]:
    """A parameter set for each row, or for each value of a list that rows have.

    Those that aren't `quick`, or whose row says so where there are none of these, are slow.
    """
    found = []
    for name, row in ROWS.items():
        slow = name not in quick if quick else row.get("slow")
        marks = [pytest.mark.slow] if slow else []
        values = [(name,)] if field is None else [(name, v) for v in row.get(field, [])]
        found += [pytest.param(*v, id="-".join(v), marks=marks) for v in values]
    return found


def test_table_has_a_row_with_two_more_schedulers_for_every_shipped_recipe() -> None:
    assert sorted((*ROWS, "tiny")) == sorted(recipe_names())
    assert [name for name, row in ROWS.items() if len(set(row["schedulers"])) < 2] == []


@pytest.mark.parametrize("name", rows())
def test_small_pipeline_equals_eager_and_every_call_hits_when_artifacts_are_loaded(
    small: Callable[[str], Small], name: str
) -> None:
    found = small(name)
    hits: Counter[str] = Counter()
    for variant in found.recipe.call.default_variants:
        recipe, pipeline = found.recipe.vary(variant), found.pipeline(variant)
        assert type(pipeline) is getattr(diffusers, recipe.pipeline)
        eager = picture(pipeline, recipe)
        loaded = found.load(pipeline)
        ours = picture(pipeline, recipe)
        assert eager.std() > 0.01  # a picture, not a blank
        assert relative_l2([ours], [eager]) <= TOLERANCE
        assert fallbacks(loaded) == {}
        hits += Counter({u: sum(m["hits"].values()) for u, m in loaded.metrics().items()})
        loaded.restore()
    assert set(hits) == set(unit_labels(found.recipe))


@pytest.mark.parametrize(("name", "scheduler"), rows("schedulers"))
def test_small_pipeline_equals_eager_and_every_call_hits_when_its_scheduler_is_another(
    small: Callable[[str], Small], name: str, scheduler: str
) -> None:
    found = small(name)
    variant = next(iter(found.recipe.call.variants))
    recipe, pipeline = found.recipe.vary(variant), found.pipeline(variant)
    swap_scheduler(pipeline, scheduler)
    eager = picture(pipeline, recipe)
    loaded = found.load(pipeline)
    tolerance = ROWS[name].get("scheduled", TOLERANCE)
    assert relative_l2([picture(pipeline, recipe)], [eager]) <= tolerance
    assert fallbacks(loaded) == {}


@pytest.mark.parametrize("name", rows(quick=("sd15",)))
def test_every_call_hits_when_guidance_and_the_prompts_length_are_others(
    small: Callable[[str], Small], name: str
) -> None:
    found = small(name)
    build_small(found.recipe, found.store, tuple(found.recipe.call.variants))
    calls = list(everyday_calls(found.recipe, ROWS[name]))
    assert len(calls) > 1
    for variant, recipe in calls:
        pipeline = found.pipeline(variant)
        eager = picture(pipeline, recipe)
        loaded = found.load(pipeline)
        assert relative_l2([picture(pipeline, recipe)], [eager]) <= TOLERANCE
        assert fallbacks(loaded) == {}
        loaded.restore()


def everyday_calls(recipe: Recipe, row: Mapping[str, Any]) -> Iterator[tuple[str, Recipe]]:
    """(variant, recipe at that call): each variant, at each prompt length that it is for."""
    others = row.get("guidance", {})
    for variant in recipe.call.variants:
        varied = recipe.vary(variant)
        length = varied.call.lengths.get("tokens")
        low, high = (length and length.range) or (0, 0)
        counts = [n for n in row.get("tokens", (77, 154)) if low <= n <= high]
        for count in counts or [length.usual if length else 0]:
            yield variant, varied.at_lengths({"tokens": count} if length else {})
        for arguments in [others] if others else []:
            call = replace(varied.call, arguments={**varied.call.arguments, **arguments})
            yield variant, replace(varied, call=call)


@pytest.mark.parametrize(("name", "table"), rows("tables"))
def test_position_table_is_bound_from_the_module_when_no_checkpoint_holds_it(
    small: Callable[[str], Small], name: str, table: str
) -> None:
    found = small(name)
    component, _, constant = table.partition(": ")
    module = getattr(found.pipeline(next(iter(found.recipe.call.variants))), component)
    plans = [
        {c.name: c.rule for c in e.manifest.constants}
        for e in Store(found.store).entries()
        if e.manifest.module == aotbuild.loaders.state.identify(module)
    ]
    assert plans
    assert {plan[constant] for plan in plans} == {"tensor/1"}
    assert constant not in module.state_dict()
    built = type(module).from_config(module.config).get_buffer(constant)
    assert torch.equal(module.get_buffer(constant), built)
