"""The arguments that `build` and `plan` share, checked cheaply into a request; builds nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from aotbuild.build.backends import check_backend
from aotbuild.build.checkpoint import local_folder
from aotbuild.build.pack import check_checkpoint
from aotbuild.build.request import BuildRequest
from aotbuild.cache.backend import AOT, BACKENDS
from aotbuild.cache.weight_files import find_weights
from aotbuild.commands.calls import find_batches, find_resolutions, find_variants
from aotbuild.commands.output import json_option, store_option
from aotbuild.errors import ToolchainError, UsageError
from aotbuild.gpus import find_gpu
from aotbuild.reading import one_of
from aotbuild.recipe import DTYPES, QUANTIZATIONS, Recipe, load_recipe
from aotbuild.recipe.component import ATTENTIONS
from aotbuild.target import CPU_LEVELS

Command = TypeVar("Command", bound=Callable[..., Any])

NEEDED = ("diffusers", "transformers", "torchao", "accelerate", "elftools", "rich")
"""Modules of what the extra `build` brings."""


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
    attention: str | None
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
        "--attention",
        metavar="BACKEND",
        help="Of the denoiser: sdpa, math, or a backend of diffusers' dispatcher.",
    ),
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
    recipe = _recipe(arguments)
    if arguments.gpu not in ("cpu", "auto", *CPU_LEVELS):
        find_gpu(arguments.gpu)
    resolutions, dynamic = find_resolutions(arguments.resolution, arguments.dynamic, recipe)
    if arguments.tune and arguments.gpu in ("cpu", *CPU_LEVELS):
        raise UsageError(
            f"--tune measures on a GPU, and --gpu {arguments.gpu} builds for a CPU. Leave it out."
        )
    local_folder(arguments.checkpoint)
    if arguments.pack_weights:
        _check_packing(arguments, recipe)
    check_installed()
    _check_attention(arguments, recipe)
    path = Path(arguments.recipe).expanduser()
    return BuildRequest(
        recipe=recipe,
        gpu=arguments.gpu,
        resolutions=resolutions,
        batches=find_batches(arguments.batch, recipe),
        variants=find_variants(arguments.variant, recipe),
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


def _recipe(arguments: Arguments) -> Recipe:
    """The recipe with what the command line says otherwise."""
    recipe = load_recipe(arguments.recipe)
    if arguments.attention is not None:
        try:
            one_of("--attention", arguments.attention, ATTENTIONS)
        except ValueError as e:
            raise UsageError(f"{e}.") from e
    try:
        return recipe.override(
            dtype=arguments.dtype, quantization=arguments.quant, attention=arguments.attention
        )
    except ValueError as e:
        raise UsageError(
            f"Recipe {recipe.name} with --attention {arguments.attention}: {e}."
        ) from e


def _check_packing(arguments: Arguments, recipe: Recipe) -> None:
    """There are weights to pack, and one set for each artifact."""
    if arguments.scope != "full":
        raise UsageError(
            "--pack-weights puts a component's weights beside its code, and a regional artifact "
            "serves many blocks, each with its own. Leave one of the two out."
        )
    checkpoint = check_checkpoint(arguments.checkpoint)
    for name in recipe.components:
        find_weights(checkpoint, name)


def _check_attention(arguments: Arguments, recipe: Recipe) -> None:
    """Every component's backend can be built here for the device that is named."""
    device = "cpu" if arguments.gpu in ("cpu", *CPU_LEVELS) else "cuda"
    for name, component in recipe.on(device).components.items():
        check_backend(name, component.attention, device)


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
