"""`demo`: the whole of it on `tiny`, with a picture and a table; `bench.demo` does and times it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aotbuild.build.request import Built
from aotbuild.commands.output import (
    human_bytes,
    human_seconds,
    make_out,
    print_table,
    store_option,
)
from aotbuild.commands.progress import progress
from aotbuild.commands.quiet import quieten
from aotbuild.commands.request import check_installed
from aotbuild.errors import VerificationError

if TYPE_CHECKING:
    from aotbuild.bench.demo import Demo, Timing

LARGEST_DIFFERENCE = 1
"""In 1/255: rounding may tip a pixel over to the next value, and no further."""


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder for the picture.",
)
@click.option("--no-compile", is_flag=True, help="Leave torch.compile out: it takes a few minutes.")
@store_option
def demo(out: Path, no_compile: bool, store: Path) -> None:
    """Build `tiny` for this machine's CPU; run it eagerly and from artifacts; draw the difference.

    Needs no network and no GPU. `tiny` is SDXL's own classes with random weights, so the picture
    shows noise, and the same noise twice.
    """
    check_installed()
    out = make_out(out)
    quieten()
    from aotbuild.bench import demo as bench_demo
    from aotbuild.bench.picture import difference, side_by_side

    recipe = bench_demo.demo_recipe()
    with progress() as on_event:
        built = bench_demo.build_artifacts(recipe, store.expanduser(), on_event)
    shown = bench_demo.run_demo(recipe, store.expanduser())
    timings = list(shown.timings)
    if not no_compile:
        click.echo(
            "torch.compile on the same pipeline: minutes, which --no-compile leaves out ...",
            err=True,
        )
        timings.insert(1, bench_demo.compile_timing(recipe))
    picture = out / "demo.png"
    side_by_side(shown.eager, shown.artifact, ("eager", "from artifacts")).save(picture)
    _print_built(built)
    _print_timings(timings)
    apart = difference(shown.eager, shown.artifact)
    click.echo(
        f"\nlargest difference of a pixel: {apart.largest}/255; "
        f"{apart.pixels} of {apart.total} pixels differ\n{_served(shown)}\n{picture}"
    )
    if apart.largest > LARGEST_DIFFERENCE:
        raise VerificationError(
            f"The two images differ by {apart.largest}/255 in a pixel, where at most "
            f"{LARGEST_DIFFERENCE}/255 is expected. Look at {picture}, and please report it."
        )


def _print_built(built: list[Built]) -> None:
    total = sum(s for b in built for s in b.seconds.values() if s)
    size = human_bytes(sum(b.bytes for b in built))
    took = f"built in {human_seconds(total)}" if total else "in the store already"
    click.echo(f"\n{len(built)} artifacts, {size}, {took}; any such machine can load them now\n")


def _print_timings(timings: list[Timing]) -> None:
    rows = [
        (t.way, *(human_seconds(s) if s else "-" for s in (t.ready_s, t.first_s, t.next_s)))
        for t in timings
    ]
    print_table(("way", "load and bind", "first image", "next image"), rows)


def _served(demo: Demo) -> str:
    parts = []
    for unit, counted in demo.metrics.items():
        calls = sum(counted["hits"].values())
        missed = sum(counted["fallbacks"].values())
        parts.append(f"{unit}: {calls} calls from the artifact, {missed} eager")
    return "; ".join(parts)
