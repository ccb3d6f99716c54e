"""The arguments that `build` and `plan` share, checked cheaply into a request; builds nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from aotbuild.build.checkpoint import local_folder
from aotbuild.build.pack import check_checkpoint
from aotbuild.build.request import BuildRequest
from aotbuild.cache.backend import AOT, BACKENDS
from aotbuild.cache.weight_files import find_weights
from aotbuild.commands.output import json_option, store_option
from aotbuild.errors import ToolchainError, UsageError
from aotbuild.gpus import find_gpu
from aotbuild.recipe import DTYPES, QUANTIZATIONS, Recipe, check_resolution, load_recipe
from aotbuild.target import CPU_LEVELS

Command = TypeVar("Command", bound=Callable[..., Any])

NEEDED = ("diffusers", "transformers", "torchao", "accelerate", "elftools", "rich")
"""Modules of what the extra `build` brings."""

BATCH_LIMIT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command line said; None and () where it said nothing."""

    recipe: str
    gpu: str
    resolution: tuple[str, ...]
    batch: tuple[str, ...]
    variant: tuple[str, ...]
    dtype: str | None
    quant: str | None
    scope: str
    component: tuple[str, ...]
    backend: str = AOT
    dynamic: str | None
    checkpoint: str | None
    pack_weights: bool
    store: Path
    tune: bool
    no_verify: bool


_OPTIONS = (
    click.argument("recipe", metavar="RECIPE|PATH.toml"),
    click.option(
        "--gpu", required=True, metavar="NAME|sm_XY|auto|cpu", help="What to build for: a100, cpu."
    ),
    click.option(
        "--resolution",
        multiple=True,
        metavar="WxH[,WxH]...",
        help="In pixels, an artifact for each; may be given again.",
    ),
    click.option(
        "--batch",
        multiple=True,
        metavar="N[,N]...",
        help="Images per call, an artifact for each; may be given again.",
    ),
    click.option(
        "--variant",
        multiple=True,
        metavar="NAME[,NAME]...|all",
        help="Calls of the recipe.  [default: all that aren't optional]",
    ),
    click.option("--dtype", type=click.Choice(tuple(DTYPES)), help="Precision of the pipeline."),
    click.option("--quant", type=click.Choice(QUANTIZATIONS), help="Weights of the denoiser."),
    click.option(
        "--scope",
        type=click.Choice(("full", "regional")),
        default="full",
        help="Whole components, or their repeated blocks.",
    ),
    click.option(
        "--component",
        multiple=True,
        metavar="NAME",
        help="Only this one: vae.decode, or all of vae; may be given again.",
    ),
    click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default=AOT,
        help="Compile ahead of time, or bundle what torch.compile caches here.",
    ),
    click.option("--dynamic", metavar="WxH:WxH", help="One artifact for a range of resolutions."),
    click.option("--checkpoint", metavar="PATH|REPO", help="A fine-tune; its configs decide."),
    click.option(
        "--pack-weights",
        is_flag=True,
        help="Carry the prepared weights of --checkpoint FOLDER, for the fastest start.",
    ),
    store_option,
    click.option("--tune", is_flag=True, help="Measure on the GPU that is here."),
    click.option("--no-verify", is_flag=True, help="Leave verification to `aotbuild verify`."),
    json_option,
)


def build_arguments(command: Command) -> Command:
    """The arguments of `build` and `plan`, in the order in which help shows them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_request(arguments: Arguments) -> BuildRequest:
    """The request, after every check that needs no torch.

    Raises:
        UsageError: a recipe, GPU, resolution or range that can't be built, weights that can't be
            packed.
        ToolchainError: what the extra `build` installs is missing.
    """
    recipe = load_recipe(arguments.recipe).override(
        dtype=arguments.dtype, quantization=arguments.quant
    )
    if arguments.gpu not in ("cpu", "auto", *CPU_LEVELS):
        find_gpu(arguments.gpu)
    resolutions, dynamic = _resolutions(arguments, recipe)
    batches = tuple(map(_batch, _items("--batch", arguments.batch))) or (recipe.call.batch,)
    if arguments.tune and arguments.gpu in ("cpu", *CPU_LEVELS):
        raise UsageError(
            f"--tune measures on a GPU, and --gpu {arguments.gpu} builds for a CPU. Leave it out."
        )
    local_folder(arguments.checkpoint)
    if arguments.pack_weights and arguments.scope != "full":
        raise UsageError(
            "--pack-weights puts a component's weights beside its code, and a regional artifact "
            "serves many blocks, each with its own. Leave one of the two out."
        )
    if arguments.pack_weights:
        checkpoint = check_checkpoint(arguments.checkpoint)
        for name in recipe.components:
            find_weights(checkpoint, name)
    check_installed()
    path = Path(arguments.recipe).expanduser()
    return BuildRequest(
        recipe=recipe,
        gpu=arguments.gpu,
        resolutions=resolutions,
        batches=batches,
        variants=_variants(arguments, recipe),
        dynamic=dynamic,
        scope=arguments.scope,
        components=arguments.component,
        backend=arguments.backend,
        checkpoint=arguments.checkpoint,
        pack_weights=arguments.pack_weights,
        store=arguments.store.expanduser(),
        verify=not arguments.no_verify,
        tune=arguments.tune,
        recipe_path=path if path.is_file() else None,
    )


def _resolutions(
    arguments: Arguments, recipe: Recipe
) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """The sizes to build for, and the range in their place; each on the model's grid."""
    resolutions = _items("--resolution", arguments.resolution) or (recipe.call.resolution,)
    dynamic = _range(arguments.dynamic)
    if dynamic and arguments.resolution:
        raise UsageError("--dynamic names a range of resolutions: leave --resolution out.")
    for resolution in (*resolutions, *(dynamic or ())):
        _check_resolution(resolution, recipe)
    return resolutions, dynamic


def _variants(arguments: Arguments, recipe: Recipe) -> tuple[str, ...]:
    known, chosen = tuple(recipe.call.variants), _items("--variant", arguments.variant)
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


def check_installed() -> None:
    """Refuse to go on without what the extra `build` installs.

    Raises:
        ToolchainError: naming what is missing.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ToolchainError(
            f"Building needs {', '.join(missing)}, not installed here; loading doesn't. "
            "Type `pip install 'aotbuild[build]'`."
        )
