"""Run a stock pipeline with stand-ins and keep its calls of its components. Exports nothing."""

from __future__ import annotations

import inspect
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aotbuild.build.arguments import call_arguments
from aotbuild.build.backends import stock_attention
from aotbuild.build.calls import RecordedCall, check_answer, check_leaves
from aotbuild.build.modules import diffusers_class, one_line, quiet
from aotbuild.build.stand_in import Recorder
from aotbuild.errors import AotbuildError, BuildError, RecipeError
from aotbuild.recipe import CallRecipe, Recipe, check_resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What one call of the pipeline asks of its components.

    Attributes:
        resolution: (width, height) in pixels.
        batch: images per prompt call.
        variant: name of the call variant.
        units: unit label -> its calls, one per signature, for the units that the recipe names; at
            the regional scope for the blocks of those that have some.
        others: the same for what the pipeline called and the recipe doesn't name.
        seconds: how long it took.
    """

    resolution: tuple[int, int]
    batch: int
    variant: str
    units: dict[str, tuple[RecordedCall, ...]]
    others: dict[str, tuple[RecordedCall, ...]]
    seconds: float


def rehearse(
    recipe: Recipe,
    configs: Mapping[str, dict[str, Any]],
    *,
    resolution: tuple[int, int],
    batch: int,
    variant: str,
    scope: str = "full",
) -> Rehearsal:
    """The calls that `recipe`'s pipeline makes at one resolution and batch size.

    Args:
        recipe: names the pipeline, the components and the call.
        configs: component configs by name, as `load_configs` gives them.
        resolution: (width, height) in pixels.
        batch: images per prompt call, before guidance doubles it.
        variant: one of `recipe.call.variants`.
        scope: "full", or "regional" for the calls of repeated blocks.

    Raises:
        RecipeError: an unknown pipeline class, component, variant or argument; a resolution that
            isn't on the model's grid; or a unit that the pipeline never calls.
        BuildError: the pipeline refused the call; with its message.
    """
    started = time.monotonic()
    _check_resolution(recipe.call, resolution)
    whole, recipe = recipe, recipe.vary(variant)
    cls = diffusers_class(recipe.pipeline)
    with stock_attention(), quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        recorders = _recorders(recipe, configs, regional=scope == "regional")
        pipeline = _assemble(cls, configs, recorders, recipe)
        _call(pipeline, call_arguments(recipe, cls, resolution, batch), recipe)
    called = {unit: tuple(c) for r in recorders.values() for unit, c in r.calls.items()}
    if len(whole.pipelines) == 1:
        check_called(whole, called)
    units = _regional(recorders, {u: called[u] for u in unit_labels(recipe) if u in called})
    _check_calls(units)
    return Rehearsal(
        resolution=resolution,
        batch=batch,
        variant=variant,
        units=units,
        others={u: c for u, c in called.items() if u not in units},
        seconds=time.monotonic() - started,
    )


def _call(pipeline: Any, arguments: dict[str, Any], recipe: Recipe) -> None:
    try:
        pipeline(**arguments)
    except AotbuildError:
        raise
    except Exception as e:
        raise BuildError(
            f"Recipe {recipe.name}: {recipe.pipeline} refused the rehearsal's call with "
            f"{type(e).__name__}: {one_line(e)}. It was called with {', '.join(arguments)}: see "
            "[call] of the recipe."
        ) from e


def unit_labels(recipe: Recipe) -> tuple[str, ...]:
    """The units that a recipe names, in its order: "unet", "vae.decode", "vae.encode"."""
    return tuple(
        name if method == "forward" else f"{name}.{method}"
        for name, component in recipe.components.items()
        for method in component.methods
    )


def _check_resolution(call: CallRecipe, resolution: tuple[int, int]) -> None:
    try:
        check_resolution("x".join(map(str, resolution)), call.multiple_px)
    except ValueError as e:
        raise RecipeError(f"{e}.") from e


def _recorders(
    recipe: Recipe, configs: Mapping[str, dict[str, Any]], *, regional: bool
) -> dict[str, Recorder]:
    missing = [n for n in recipe.components if n not in configs]
    if missing:
        raise RecipeError(
            f"Recipe {recipe.name}: component {missing[0]!r} has no config in "
            f"{recipe.architecture!r}; there are {', '.join(sorted(configs))}."
        )
    recorders = {}
    for name, config in configs.items():
        if _kind(config) == "model":
            component = recipe.components.get(name)
            rules = component.rules if component else {}
            recorders[name] = Recorder(
                name,
                config,
                recipe.torch_dtype,
                rules,
                component.ip_adapters if component else (),
                component is not None and component.tiling,
                component if regional else None,
            )
    return recorders


def _kind(config: Mapping[str, Any]) -> str:
    """ "model", "scheduler", or "other": text encoders, tokenizers, the index."""
    import diffusers

    found = getattr(diffusers, str(config.get("_class_name")), None)
    if not isinstance(found, type):
        return "other"
    if issubclass(found, nn.Module):
        return "model"
    return "scheduler" if issubclass(found, diffusers.SchedulerMixin) else "other"


def _assemble(
    cls: type[Any],
    configs: Mapping[str, dict[str, Any]],
    recorders: Mapping[str, Recorder],
    recipe: Recipe,
) -> Any:
    """The pipeline around its stand-ins; what has no config (text encoders) is None."""
    index = configs.get("model_index", {})
    parts: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        absent = None if parameter.default is parameter.empty else parameter.default
        if name in recorders:
            parts[name] = recorders[name].module
        elif name in configs and _kind(configs[name]) == "scheduler":
            config = configs[name]
            parts[name] = diffusers_class(config["_class_name"]).from_config(config)
        else:
            known = name in index and isinstance(index[name], (bool, int, float, str))
            parts[name] = index[name] if known else absent
    if "requires_safety_checker" in parts:
        parts["requires_safety_checker"] = False
    try:
        pipeline = cls(**parts)
    except Exception as e:
        raise RecipeError(
            f"Recipe {recipe.name}: {recipe.pipeline} can't be put together from the configs "
            f"{', '.join(sorted(configs))}: {type(e).__name__}: {one_line(e)}."
        ) from e
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def check_called(recipe: Recipe, called: Collection[str]) -> None:
    """Refuse a recipe that names a unit which none of its pipelines calls.

    Args:
        recipe: the whole one. called: labels of the units that the rehearsals of its calls saw.

    Raises:
        RecipeError: naming the unit, and those that are called.
    """
    for label in unit_labels(recipe):
        if label not in called:
            raise RecipeError(
                f"Recipe {recipe.name} names {label}, but {' and '.join(recipe.pipelines)} "
                f"{'call' if recipe.pipelines[1:] else 'calls'} no such unit; there are "
                f"{', '.join(sorted(called)) or 'none'}."
            )


def _regional(
    recorders: Mapping[str, Recorder], units: dict[str, tuple[RecordedCall, ...]]
) -> dict[str, tuple[RecordedCall, ...]]:
    """`units`, but in place of each component whose blocks were listened to, these."""
    found: dict[str, tuple[RecordedCall, ...]] = {}
    for label, calls in units.items():
        blocks = recorders[calls[0].component].blocks
        if blocks is None or not blocks.calls:
            found[label] = calls
            continue
        for unit in dict.fromkeys(call.unit for call in blocks.calls):
            found[unit] = tuple(call for call in blocks.calls if call.unit == unit)
    return found


def _check_calls(units: Mapping[str, tuple[RecordedCall, ...]]) -> None:
    """Refuse calls that can't be compiled."""
    for label, calls in units.items():
        for recorded in calls:
            check_leaves(recorded.call, label)
            check_answer(recorded.answer, label)
