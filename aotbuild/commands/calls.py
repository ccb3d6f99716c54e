"""Which calls of a recipe the command line asks for: sizes, batches, variants. Builds nothing."""

from __future__ import annotations

import re

from aotbuild.errors import UsageError
from aotbuild.recipe import Recipe, check_resolution

BATCH_LIMIT = 4096


def find_resolutions(
    given: tuple[str, ...], dynamic: str | None, recipe: Recipe
) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """The sizes to build for, and the range in their place; each on the model's grid.

    Raises:
        UsageError: a size that isn't one, or isn't on the grid; both sizes and a range.
    """
    resolutions = _items("--resolution", given) or (recipe.call.resolution,)
    limits = _range(dynamic)
    if limits and given:
        raise UsageError("--dynamic names a range of resolutions: leave --resolution out.")
    for resolution in (*resolutions, *(limits or ())):
        _check_resolution(resolution, recipe)
    return resolutions, limits


def find_batches(given: tuple[str, ...], recipe: Recipe) -> tuple[int, ...]:
    """Images per call, of each artifact.

    Raises:
        UsageError: one that isn't a number of images.
    """
    return tuple(map(_batch, _items("--batch", given))) or (recipe.call.batch,)


def find_variants(given: tuple[str, ...], recipe: Recipe) -> tuple[str, ...]:
    """The recipe's calls that are named; () where none is.

    Raises:
        UsageError: the recipe has no such call.
    """
    known, chosen = tuple(recipe.call.variants), _items("--variant", given)
    if "all" in chosen:
        return known
    for name in chosen:
        if name not in known:
            raise UsageError(
                f"--variant {name}: recipe {recipe.name} has the calls "
                f"{', '.join(known) or 'of no name'}; write one, several, or all."
            )
    return chosen


def _items(option: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """What lists like "1,4,16" hold, each once, in their order."""
    items = tuple(item.strip() for text in given for item in text.split(","))
    if not all(items):
        raise UsageError(f"{option} {','.join(given)}: nothing stands at one side of a comma.")
    return tuple(dict.fromkeys(items))


def _batch(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text) or int(text) > BATCH_LIMIT:
        raise UsageError(
            f"--batch {text}: write whole numbers from 1 to {BATCH_LIMIT}, like 4 or 1,4,16."
        )
    return int(text)


def _range(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    low, colon, high = text.partition(":")
    if not colon:
        raise UsageError(f"--dynamic {text}: write WxH:WxH, like 768x768:1280x1280.")
    return low, high


def _check_resolution(text: str, recipe: Recipe) -> None:
    try:
        check_resolution(text, recipe.call.multiple_px)
    except ValueError as e:
        raise UsageError(f"Recipe {recipe.name}: {e}.") from e
