"""Every shipped recipe at its real size: the calls of its units, and what its int8 filter does."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from aotbuild.build.ip_adapter import add_ip_adapters
from aotbuild.build.modules import build_module
from aotbuild.build.prepare import prepare
from aotbuild.build.quantize import Layer, survey
from aotbuild.build.rehearse import check_called, rehearse
from aotbuild.cache.signature import flatten
from aotbuild.recipe import Recipe, load_recipe, parse_resolution, recipe_configs, recipe_names

CALLS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("recipe_calls.toml").read_text(encoding="utf-8")
)["calls"]
NAMES = tuple(name for name in recipe_names() if name != "tiny")
FILTERED = [(n, c) for n in NAMES for c, r in load_recipe(n).components.items() if r.int8]


def marked(expected: dict[str, Any]) -> Any:
    marks = [pytest.mark.slow] if expected.get("slow") else []
    return pytest.param(expected, id=f"{expected['recipe']}-{expected['variant']}", marks=marks)


def test_table_has_every_call_and_every_unit_of_every_recipe() -> None:
    shipped = [(name, v) for name in NAMES for v in load_recipe(name).call.default_variants]
    assert sorted((c["recipe"], c["variant"]) for c in CALLS) == sorted(shipped)
    for name in NAMES:
        check_called(
            load_recipe(name), {u for c in CALLS if c["recipe"] == name for u in c["units"]}
        )


@pytest.mark.parametrize("expected", [marked(c) for c in CALLS])
def test_recipe_makes_the_published_calls_when_rehearsed_at_its_size(
    expected: dict[str, Any],
) -> None:
    recipe = load_recipe(expected["recipe"])
    found = rehearse(
        recipe,
        recipe_configs(recipe),
        resolution=parse_resolution(recipe.call.resolution),
        batch=1,
        variant=expected["variant"],
    )
    calls = {unit: dict(flatten(recorded.call)) for unit, (recorded,) in found.units.items()}
    assert {unit: shapes(call) for unit, call in calls.items()} == expected["units"]
    for unit, values in expected.get("values", {}).items():
        assert {path: calls[unit][path] for path in values} == values
    for unit, paths in expected.get("none", {}).items():
        assert {path: calls[unit][path] for path in paths} == dict.fromkeys(paths)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "component"), FILTERED)
def test_filter_names_layers_that_exist_and_admits_most_weights(name: str, component: str) -> None:
    recipe = load_recipe(name)
    rule = recipe.components[component].int8
    assert rule is not None
    layers = [layer for device in ("cpu", "cuda") for layer in judged(recipe, component, device)]
    for pattern in rule.skip_layers:
        assert any(fnmatchcase(layer.path, pattern) for layer in layers), pattern
    admitted = sum(weights(layer) for layer in layers if layer.reason is None)
    # The rest is mostly modulation, and in IF projections of the text and the timestep. Of the VAE
    # SDXL's own filter admits nothing.
    least = {"vae": 0.0}.get(component, 0.2 if name.startswith("if-") else 0.6)
    assert admitted >= least * sum(map(weights, layers))


def shapes(call: dict[str, Any]) -> dict[str, list[int]]:
    return {path: list(v.shape) for path, v in call.items() if isinstance(v, torch.Tensor)}


def judged(recipe: Recipe, name: str, device: str) -> tuple[Layer, ...]:
    component = recipe.components[name].on(device)
    module = build_module(recipe_configs(recipe)[name], recipe.torch_dtype)
    add_ip_adapters(module, component.ip_adapters, recipe.torch_dtype)
    prepare(module, replace(component, quantization="none"))
    return survey(module, replace(component, quantization="int8dq"))


def weights(layer: Layer) -> int:
    return layer.in_features * layer.out_features
