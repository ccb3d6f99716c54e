"""Run a stock pipeline with stand-ins and keep its calls of its components. Exports nothing."""

from __future__ import annotations

import difflib
import inspect
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aotbuild.build.calls import RecordedCall, check_answer, check_leaves
from aotbuild.build.modules import diffusers_class, one_line, quiet
from aotbuild.build.stand_in import Recorder
from aotbuild.errors import AotbuildError, BuildError, RecipeError
from aotbuild.recipe import CallRecipe, Recipe, TensorRecipe, check_resolution

STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What one call of the pipeline asks of its components.

    Attributes:
        resolution: (width, height) in pixels.
        batch: images per prompt call.
        variant: name of the call variant.
        units: unit label -> its calls, one per signature, for the units that the recipe names.
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
) -> Rehearsal:
    """The calls that `recipe`'s pipeline makes at one resolution and batch size.

    Args:
        recipe: names the pipeline, the components and the call.
        configs: component configs by name, as `load_configs` gives them.
        resolution: (width, height) in pixels.
        batch: images per prompt call, before guidance doubles it.
        variant: one of `recipe.call.variants`.

    Raises:
        RecipeError: an unknown pipeline class, component, variant or argument; a resolution that
            isn't on the model's grid; or a unit that the pipeline never calls.
        BuildError: the pipeline refused the call; with its message.
    """
    started = time.monotonic()
    _check_resolution(recipe.call, resolution)
    cls = diffusers_class(recipe.pipeline)
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        recorders = _recorders(recipe, configs)
        pipeline = _assemble(cls, configs, recorders, recipe)
        _call(pipeline, _arguments(recipe, cls, resolution, batch, variant), recipe)
    called = {unit: tuple(c) for r in recorders.values() for unit, c in r.calls.items()}
    wanted = _wanted(recipe, called)
    return Rehearsal(
        resolution=resolution,
        batch=batch,
        variant=variant,
        units={u: called[u] for u in wanted},
        others={u: c for u, c in called.items() if u not in wanted},
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


def _recorders(recipe: Recipe, configs: Mapping[str, dict[str, Any]]) -> dict[str, Recorder]:
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
            recorders[name] = Recorder(name, config, recipe.torch_dtype, rules)
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


def _arguments(
    recipe: Recipe, cls: type[Any], resolution: tuple[int, int], batch: int, variant: str
) -> dict[str, Any]:
    call = recipe.call
    if variant not in call.variants and (call.variants or variant != "default"):
        raise RecipeError(
            f"Recipe {recipe.name} has no call variant {variant!r}; it has "
            f"{', '.join(call.variants) or 'default'}."
        )
    given: dict[str, Any] = {**call.arguments, **call.variants.get(variant, {})}
    sizes = {"batch": batch, "width": resolution[0], "height": resolution[1]}
    tensors = {n: _tensor(t, sizes, recipe.torch_dtype) for n, t in call.tensors.items()}
    parameters = inspect.signature(cls.__call__).parameters
    for name in (*given, *tensors):
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise RecipeError(
                f"Recipe {recipe.name}: {recipe.pipeline} takes no argument {name!r}.{hint}"
            )
    ours = _own_arguments(parameters, given, resolution)
    return {**ours, **_without_text(parameters, tensors), **tensors, **given}


def _own_arguments(
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    resolution: tuple[int, int],
) -> dict[str, Any]:
    """What every rehearsal passes, of what the pipeline takes."""
    steps = STEPS
    if "strength" in parameters:
        # An image-to-image pipeline runs strength * steps of them; two must be left.
        strength = float(given.get("strength", parameters["strength"].default))
        steps = math.ceil(STEPS / strength) if 0 < strength <= 1 else STEPS
    width, height = resolution
    ours = {"num_inference_steps": steps, "output_type": "pt", "width": width, "height": height}
    return {n: v for n, v in ours.items() if n in parameters}


def _without_text(
    parameters: Mapping[str, inspect.Parameter], tensors: Mapping[str, Any]
) -> dict[str, None]:
    """None for each text whose embeddings are given; a default of "" and these are refused."""
    texts = (n.removesuffix("_embeds") for n in tensors if n.endswith("_embeds"))
    return {n: None for n in texts if n in parameters and parameters[n].default == ""}


def _tensor(tensor: TensorRecipe, sizes: Mapping[str, int], precision: str) -> torch.Tensor:
    shape = [sizes[e] if isinstance(e, str) else e for e in tensor.shape]
    dtype = precision if tensor.dtype == "float" else tensor.dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise RecipeError(f"call.tensors: dtype {tensor.dtype!r} is neither 'float' nor torch's.")
    return torch.full(shape, tensor.fill, dtype=found)


def _wanted(recipe: Recipe, called: Mapping[str, tuple[RecordedCall, ...]]) -> tuple[str, ...]:
    labels = unit_labels(recipe)
    for label in labels:
        if label not in called:
            raise RecipeError(
                f"Recipe {recipe.name} names {label}, but {recipe.pipeline} doesn't call it; it "
                f"calls {', '.join(sorted(called)) or 'nothing'}."
            )
        for recorded in called[label]:
            check_leaves(recorded.call, label)
            check_answer(recorded.answer, label)
    return labels
