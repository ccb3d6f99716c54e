"""`bench ladder` and `bench throughput`: published experiments; `aotbuild.bench.ladder` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aotbuild.bench.ladder.rungs import NAMES
from aotbuild.commands.output import (
    human_bytes,
    human_seconds,
    json_option,
    make_out,
    print_json,
    print_table,
    store_option,
)
from aotbuild.commands.progress import progress
from aotbuild.commands.quiet import quieten
from aotbuild.commands.request import check_installed
from aotbuild.errors import UsageError
from aotbuild.recipe import Recipe, check_resolution, load_recipe

if TYPE_CHECKING:
    from aotbuild.bench.ladder.rows import Row

Command = TypeVar("Command", bound=Callable[..., Any])
THROUGHPUT = ("sdpa", "compile", "aot")
"""Without torch.compile, with it, from artifacts."""


def _common(command: Command) -> Command:
    """The options that both commands have."""
    options = (
        click.option("--steps", type=click.IntRange(min=1), default=30, show_default=True),
        click.option(
            "--images",
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            help="Timed after the first of each process.",
        ),
        click.option(
            "--resolution", metavar="WxH", help="In pixels; the recipe's own if not said."
        ),
        click.option(
            "--device",
            type=click.Choice(("auto", "cpu", "cuda")),
            default="auto",
            show_default=True,
            help="auto: the GPU, where there is one.",
        ),
        click.option("--checkpoint", metavar="PATH|REPO", help="Its weights, not random ones."),
        click.option("--resume", is_flag=True, help="Don't run again what is finished in --out."),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("bench-results"),
            show_default=True,
            help="Folder for a CSV and a picture of each experiment.",
        ),
        store_option,
        json_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("recipe")
@click.option("--batch", type=click.IntRange(min=1), help="The recipe's own if not said.")
@click.option(
    "--only", multiple=True, type=click.Choice(NAMES), help="Rungs to climb; all if not said."
)
@_common
@click.pass_context
def ladder(
    ctx: click.Context, /, recipe: str, batch: int | None, only: tuple[str, ...], **how: Any
) -> None:
    """Time the published experiments in order, each in a fresh process.

    fp32 with plain attention, tf32, bf16 and fp16, SDPA, torch.compile, fused QKV, int8, other ways
    to compile, and artifacts. Each leaves a CSV and a picture of the same seed; what this machine
    can't run is named with the reason. Ctrl-C loses none that is finished; --resume goes on.
    """
    found = _sized(load_recipe(recipe), how["resolution"], batch)
    rows = list(_climbed(((found, only or NAMES),), **how))
    _end(ctx, rows, how)


@click.command()
@click.argument("recipes", nargs=-1, required=True)
@click.option("--batch", "batches", default="1", show_default=True, help="Sizes: 1,4,16.")
@_common
@click.pass_context
def throughput(ctx: click.Context, /, recipes: tuple[str, ...], batches: str, **how: Any) -> None:
    """Time denoising steps per second: without torch.compile, with it, and from artifacts.

    The rungs sdpa, compile and aot of `bench ladder`, for several recipes and batch sizes;
    `bench report --against published` sets published figures beside them.
    """
    sizes = _sizes(batches)
    loaded = [load_recipe(name) for name in recipes]
    jobs = [(_sized(one, how["resolution"], n), THROUGHPUT) for one in loaded for n in sizes]
    rows = list(_climbed(jobs, **how))
    _end(ctx, rows, how)


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise UsageError(f"--batch {text}: write sizes from 1 on with commas between, 1,4,16.")
    return list(dict.fromkeys(sizes))


def _sized(recipe: Recipe, resolution: str | None, batch: int | None) -> Recipe:
    try:
        check_resolution(resolution or recipe.call.resolution, recipe.call.multiple_px)
    except ValueError as e:
        raise UsageError(f"Recipe {recipe.name}: {e}.") from e
    return recipe.override(resolution=resolution, batch=batch)


def _climbed(
    jobs: Iterable[tuple[Recipe, tuple[str, ...]]],
    *,
    steps: int,
    images: int,
    resolution: str | None,
    device: str,
    checkpoint: str | None,
    resume: bool,
    out: Path,
    store: Path,
    as_json: bool,
) -> Iterable[Row]:
    del resolution, as_json
    check_installed()
    out = make_out(out)
    quieten()
    from aotbuild.bench.ladder.climb import Settings, climb

    kind = _device(device)
    with progress() as on_event:
        for recipe, names in jobs:
            settings = Settings(
                recipe=recipe, device=kind, steps=steps, images=images, checkpoint=checkpoint
            )
            yield from climb(
                settings,
                names,
                out=out,
                store=store.expanduser(),
                resume=resume,
                on_event=on_event,
                say=lambda text: click.echo(text, err=True),
            )


def _device(asked: str) -> str:
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"--device cuda: torch {torch.__version__} sees no GPU here. Type --device cpu."
        )
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def _end(ctx: click.Context, rows: list[Row], how: dict[str, Any]) -> None:
    """The table or the document; exit code 1 where a rung failed."""
    from aotbuild.bench.ladder.rows import FAILED

    if how["as_json"]:
        print_json({"rows": [asdict(row) for row in rows], "out": str(how["out"])})
    else:
        print_table(_HEADER, map(_cells, rows))
        for row in rows:
            if row.reason:
                click.echo(f"{row.rung} {row.status}: {row.reason}")
        click.echo(f"\n{how['out']}; `aotbuild bench report {how['out']}` draws it")
    if any(row.status == FAILED for row in rows):
        ctx.exit(1)


_HEADER = (
    *("recipe", "batch", "rung", "image", "steps/s", "first image", "of it ready", "and run"),
    *("peak", "off fp32"),
)


def _cells(row: Row) -> tuple[str, ...]:
    start = (row.recipe, str(row.batch), row.title)
    if row.latency_s is None:
        return (*start, row.status, *[""] * (len(_HEADER) - 4))
    spread = f" ± {human_seconds(row.latency_spread_s or 0)}" if row.images > 1 else ""
    return (
        *start,
        f"{human_seconds(row.latency_s)}{spread}",
        f"{row.iterations_per_second:.2f}",
        *(human_seconds(s or 0) for s in (row.first_image_s, row.ready_s, row.first_s)),
        human_bytes(row.peak_bytes or 0),
        "" if row.largest_difference is None else f"{row.largest_difference}/255",
    )
