"""`bench`: the measurements that the README quotes, printed and kept; `aotbuild.bench` measures."""

from __future__ import annotations

from pathlib import Path

import click

from aotbuild.commands.cold_start import cold_start
from aotbuild.commands.coverage import coverage
from aotbuild.commands.ladder import ladder, throughput
from aotbuild.commands.output import json_option, print_json, store_option
from aotbuild.commands.progress import progress
from aotbuild.commands.quiet import quieten
from aotbuild.commands.report import report
from aotbuild.commands.service import service
from aotbuild.groups import Group


@click.group(cls=Group)
def bench() -> None:
    """Measure cold starts, the published experiments, the guard, and what each recipe builds."""


bench.add_command(cold_start)
bench.add_command(coverage)
bench.add_command(ladder)
bench.add_command(throughput)
bench.add_command(report)
bench.add_command(service)


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
