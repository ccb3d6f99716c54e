"""What is passed to a pipeline: a recipe's call as arguments. Calls nothing."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from aotbuild.errors import RecipeError
from aotbuild.recipe import Recipe, TensorRecipe

STEPS = 2

Values = Callable[[str, TensorRecipe, tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes the tensor argument of that name: (name, what the recipe says, shape, dtype)."""


def filled(
    name: str, tensor: TensorRecipe, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Every element the recipe's `fill`: enough for a rehearsal, whatever `name` is."""
    del name
    return torch.full(shape, tensor.fill, dtype=dtype)


def call_arguments(
    recipe: Recipe,
    cls: type[Any],
    resolution: tuple[int, int],
    batch: int,
    *,
    steps: int = STEPS,
    values: Values = filled,
) -> dict[str, Any]:
    """The arguments of `cls`'s call that `recipe` asks for, as a caller would pass them.

    Args:
        recipe: of one variant, see `Recipe.vary`.
        cls: the pipeline class.
        resolution: (width, height) in pixels.
        batch: images per prompt call.
        steps: how often the denoiser is to be called.
        values: what the tensors hold.

    Raises:
        RecipeError: an argument that the pipeline doesn't take, or a tensor that can't be.
    """
    given: dict[str, Any] = dict(recipe.call.arguments)
    own = {"batch": batch, "width": resolution[0], "height": resolution[1]}
    sizes = {**recipe.call.usual_lengths, **own}
    tensors = {n: _tensors(n, t, sizes, recipe, values) for n, t in recipe.call.tensors.items()}
    parameters = inspect.signature(cls.__call__).parameters
    for name in (*given, *tensors):
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise RecipeError(
                f"Recipe {recipe.name}: {recipe.pipeline} takes no argument {name!r}.{hint}"
            )
    ours = _own_arguments(parameters, given, resolution, steps)
    return {**ours, **_without_text(parameters, tensors), **tensors, **given}


def _own_arguments(
    parameters: Mapping[str, inspect.Parameter],
    given: Mapping[str, Any],
    resolution: tuple[int, int],
    steps: int,
) -> dict[str, Any]:
    """What every call passes, of what the pipeline takes."""
    if "strength" in parameters:
        # An image-to-image pipeline runs strength * steps of them.
        strength = float(given.get("strength", parameters["strength"].default))
        steps = math.ceil(steps / strength) if 0 < strength <= 1 else steps
    width, height = resolution
    ours = {"num_inference_steps": steps, "output_type": "pt", "width": width, "height": height}
    return {n: v for n, v in ours.items() if n in parameters}


def _without_text(
    parameters: Mapping[str, inspect.Parameter], tensors: Mapping[str, Any]
) -> dict[str, None]:
    """None for each text whose embeddings are given; a default of "" and these are refused."""
    texts = (n.removesuffix("_embeds") for n in tensors if n.endswith("_embeds"))
    return {n: None for n in texts if n in parameters and parameters[n].default == ""}


def _tensors(
    name: str, tensor: TensorRecipe, sizes: Mapping[str, int], recipe: Recipe, values: Values
) -> Any:
    """The tensor argument `name`, or a list of as many as the recipe counts."""
    dtype = recipe.torch_dtype if tensor.dtype == "float" else tensor.dtype
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise RecipeError(f"call.tensors: dtype {tensor.dtype!r} is neither 'float' nor torch's.")
    try:
        shape = tensor.extents(sizes)
    except ValueError as e:
        raise RecipeError(f"Recipe {recipe.name}: call.tensors.{name}: {e}.") from e
    made = [values(name, tensor, shape, found) for _ in range(tensor.count or 1)]
    return made[0] if tensor.count is None else made
