"""`bench cold-start`: to a first denoising step, or with `--whole` to a first image."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from aotbuild.bench.summary import by_way, column, medians, ratios, spread
from aotbuild.bench.ways import BUNDLE, COLUMNS, PACKED, WAYS, Run
from aotbuild.bench.whole_ways import NO_GC, PARTS, WHOLE_WAYS, Whole
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
from aotbuild.errors import UsageError
from aotbuild.recipe import DTYPES, QUANTIZATIONS, Recipe, check_resolution, load_recipe


@click.command("cold-start")
@click.argument("recipe")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice((*WAYS, NO_GC)),
    help="Ways to run; all if not said.",
)
@click.option("--whole", is_flag=True, help="From the start of the process to its first image.")
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--dtype", type=click.Choice(tuple(DTYPES)), default="fp32", show_default=True)
@click.option("--quant", type=click.Choice(QUANTIZATIONS), default="none", show_default=True)
@click.option("--resolution", metavar="WxH", help="In pixels; the recipe's own if not said.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-results"),
    show_default=True,
    help="Folder for the CSV and the plot; needs room for twice the weights meanwhile.",
)
@store_option
@json_option
def cold_start(
    recipe: str,
    only: tuple[str, ...],
    whole: bool,
    repeats: int,
    steps: int,
    dtype: str,
    quant: str,
    resolution: str | None,
    out: Path,
    store: Path,
    as_json: bool,
) -> None:
    """Time each way to a first denoising step, in fresh processes, on this machine's CPU.

    The ways: eager; torch.compile with empty caches, with a filled cache folder, with a mega-cache,
    with a JIT-cache bundle (not for --quant); torch's aoti_load_package; aotbuild, and aotbuild
    with packed weights, where --quant makes other weights of them or --only asks for it. Rounds are
    interleaved.

    With --whole a stock pipeline's first image of one step, timed from the start of the process:
    eager, compile, aotbuild, and aotbuild with Python's garbage collector off until then. --steps
    is how many images are drawn after it.
    """
    wanted = _recipe(recipe, dtype=dtype, quant=quant, resolution=resolution)
    ways = only or _all_ways(quant, whole=whole)
    if odd := [w for w in only if w not in (WHOLE_WAYS if whole else WAYS)]:
        raise UsageError(
            f"--only {odd[0]} is a way to a first {'step' if whole else 'image'}: "
            + ("leave --whole out." if whole else "add --whole.")
        )
    quieten()
    out = make_out(out)
    from aotbuild.bench import cold_start as bench_steps
    from aotbuild.bench import whole as bench_whole
    from aotbuild.bench.facts import facts
    from aotbuild.bench.report import write_csv, write_plot

    runs: Sequence[Run | Whole]
    with tempfile.TemporaryDirectory(prefix="work-", dir=out) as work, progress() as on_event:
        plan = bench_steps.Plan(
            recipe=wanted,
            ways=ways,
            repeats=repeats,
            steps=steps,
            store=store,
            work=Path(work).resolve(),
        )
        measure = bench_whole.measure if whole else bench_steps.measure
        runs = measure(plan, on_event=on_event, say=_say)
    precision = dtype if quant == "none" else f"{dtype}-{quant}"
    known = {
        "recipe": wanted.name,
        "resolution": wanted.call.resolution,
        "dtype": dtype,
        "quantization": quant,
        **facts(),
    }
    name = f"cold-start-{wanted.name}-{wanted.call.resolution}-{precision}"
    path = out / f"{name}{'-whole' if whole else ''}.csv"
    write_csv(path, runs, known)
    steps_runs = [r for r in runs if isinstance(r, Run)]
    title = f"{wanted.name} {wanted.call.resolution} {precision}"
    if steps_runs:
        title = f"{title}, torch {known['torch']}, {known['processor']}"
        write_plot(path.with_suffix(".png"), steps_runs, title)
    if as_json:
        said: dict[str, Any] = {"facts": known, "runs": [_json(r) for r in runs]}
        print_json(said if whole else {**said, "ratios": list(ratios(steps_runs))})
        return
    if whole:
        _print_wholes([r for r in runs if isinstance(r, Whole)])
    else:
        _print_runs(steps_runs)
    click.echo(f"\n{path}{'' if whole else ', .png'}")


def _recipe(name: str, *, dtype: str, quant: str, resolution: str | None) -> Recipe:
    wanted = load_recipe(name).override(dtype=dtype, quantization=quant)
    try:
        check_resolution(resolution or wanted.call.resolution, wanted.call.multiple_px)
        return wanted.override(resolution=resolution)
    except ValueError as e:
        raise UsageError(f"Recipe {wanted.name}: {e}.") from e


def _all_ways(quant: str, *, whole: bool) -> tuple[str, ...]:
    left_out = (PACKED,) if quant == "none" else (BUNDLE,)
    return WHOLE_WAYS if whole else tuple(w for w in WAYS if w not in left_out)


def _json(run: Run | Whole) -> dict[str, Any]:
    return {**asdict(run), "own_s": run.own_s} if isinstance(run, Whole) else asdict(run)


def _print_runs(runs: list[Run]) -> None:
    rows = []
    for way, mine in by_way(runs).items():
        cells = [way]
        for name, median in medians(mine).items():
            apart = f" ± {_shown(name, spread(column(mine, name)))}" if len(mine) > 1 else ""
            cells.append(f"{_shown(name, median)}{apart}")
        rows.append(cells)
    header = ("way", *(n.removesuffix("_s").removesuffix("_bytes") for n in COLUMNS))
    print_table(header, rows)
    click.echo("medians ± (largest less smallest)\n")
    for sentence in ratios(runs):
        click.echo(sentence)


def _print_wholes(runs: list[Whole]) -> None:
    """The parts down, the ways across: there are more parts than a line holds."""
    grouped = {w: [r for r in runs if r.way == w] for w in WHOLE_WAYS}
    grouped = {way: mine for way, mine in grouped.items() if mine}
    rows = []
    for part, words in PARTS.items():
        cells = [words]
        for mine in grouped.values():
            values = [float(getattr(r, part)) for r in mine]
            apart = f" ± {human_seconds(spread(values))}" if len(mine) > 1 else ""
            cells.append(f"{human_seconds(statistics.median(values))}{apart}")
        rows.append(cells)
    print_table(("", *grouped), rows)
    click.echo("medians ± (largest less smallest)\n")
    for way, mine in grouped.items():
        if found := [r.difference for r in mine if r.difference is not None]:
            click.echo(f"{way}: largest difference of a pixel from eager's: {max(found)}/255")


def _shown(name: str, value: float) -> str:
    return human_bytes(int(value)) if name.endswith("_bytes") else human_seconds(value)


def _say(text: str) -> None:
    click.echo(text, err=True)
