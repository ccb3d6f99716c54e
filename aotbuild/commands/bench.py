"""`bench`: the measurements that the README quotes, printed and kept; `aotbuild.bench` measures."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from aotbuild.bench.summary import by_way, column, medians, ratios, spread
from aotbuild.bench.ways import BUNDLE, COLUMNS, PACKED, WAYS, Run
from aotbuild.commands.coverage import coverage
from aotbuild.commands.ladder import ladder, throughput
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
from aotbuild.commands.report import report
from aotbuild.commands.service import service
from aotbuild.errors import UsageError
from aotbuild.groups import Group
from aotbuild.recipe import DTYPES, QUANTIZATIONS, check_resolution, load_recipe


@click.group(cls=Group)
def bench() -> None:
    """Measure cold starts, the published experiments, the guard, and what each recipe builds."""


bench.add_command(coverage)
bench.add_command(ladder)
bench.add_command(throughput)
bench.add_command(report)
bench.add_command(service)


@bench.command("cold-start")
@click.argument("recipe")
@click.option(
    "--only", multiple=True, type=click.Choice(WAYS), help="Ways to run; all if not said."
)
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
    """
    wanted = load_recipe(recipe).override(dtype=dtype, quantization=quant)
    try:
        check_resolution(resolution or wanted.call.resolution, wanted.call.multiple_px)
        wanted = wanted.override(resolution=resolution)
    except ValueError as e:
        raise UsageError(f"Recipe {wanted.name}: {e}.") from e
    left_out = (PACKED,) if quant == "none" else (BUNDLE,)
    quieten()
    out = make_out(out)
    from aotbuild.bench import cold_start as bench_cold_start
    from aotbuild.bench.facts import facts
    from aotbuild.bench.report import write_csv, write_plot

    with tempfile.TemporaryDirectory(prefix="work-", dir=out) as work, progress() as on_event:
        plan = bench_cold_start.Plan(
            recipe=wanted,
            ways=only or tuple(w for w in WAYS if w not in left_out),
            repeats=repeats,
            steps=steps,
            store=store,
            work=Path(work).resolve(),
        )
        runs = bench_cold_start.measure(plan, on_event=on_event, say=_say)
    precision = dtype if quant == "none" else f"{dtype}-{quant}"
    title = f"{wanted.name} {wanted.call.resolution} {precision}"
    known = {
        "recipe": wanted.name,
        "resolution": wanted.call.resolution,
        "dtype": dtype,
        "quantization": quant,
        **facts(),
    }
    name = f"cold-start-{wanted.name}-{wanted.call.resolution}-{precision}"
    write_csv(out / f"{name}.csv", runs, known)
    write_plot(out / f"{name}.png", runs, f"{title}, torch {known['torch']}, {known['processor']}")
    if as_json:
        print_json(
            {"facts": known, "runs": [asdict(r) for r in runs], "ratios": list(ratios(runs))}
        )
    else:
        _print_runs(runs)
        click.echo(f"\n{out / name}.csv, .png")


@bench.command()
@click.option("--calls", type=click.IntRange(min=10), default=200, show_default=True)
@click.option("--sdxl", is_flag=True, help="Also over SDXL's 1,680 constants (builds for minutes).")
@store_option
@json_option
def dispatch(calls: int, sdxl: bool, store: Path, as_json: bool) -> None:
    """Time what the guard adds to each call of the bare runner."""
    quieten()
    from aotbuild.bench import dispatch as bench_dispatch

    with progress() as on_event:
        figures = bench_dispatch.measure(store=store, calls=calls, sdxl=sdxl, on_event=on_event)
    if as_json:
        print_json(figures)
        return
    for name, found in figures.items():
        low, high = found["guard_quartiles_us"]
        click.echo(
            f"{name}: the guard takes {found['guard_us']} us a call (quartiles {low}, {high}) over "
            f"{found['constants']} constants, beside a run of {found['run_us'] / 1e3:.1f} ms; "
            f"{found['guard_alone_us']} us without runs between, caches warm; "
            f"{found['calls']} calls"
        )


@bench.command()
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@store_option
@json_option
def concurrency(repeats: int, store: Path, as_json: bool) -> None:
    """Time how far a run stalls another thread, and two runs at once against two in turn."""
    quieten()
    from aotbuild.bench import concurrency as bench_concurrency

    with progress() as on_event:
        found = bench_concurrency.measure(store=store, repeats=repeats, on_event=on_event)
    if as_json:
        print_json(found)
        return
    click.echo(f"a 1 ms ticker stalls {found['stall_ms']} ms beside a run of {found['run_ms']} ms")
    click.echo(
        f"two threads take {found['two_threads_s']} s, one after the other {found['in_turn_s']} s: "
        f"{found['ratio']} (plain matrix products: {found['control_ratio']})"
    )


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


def _shown(name: str, value: float) -> str:
    return human_bytes(int(value)) if name.endswith("_bytes") else human_seconds(value)


def _say(text: str) -> None:
    click.echo(text, err=True)
