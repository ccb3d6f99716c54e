"""`bench coverage`: which recipes build for which targets, as a table; `bench.coverage` builds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from aotbuild.bench.coverage_row import Row
from aotbuild.bench.coverage_table import CSV, HEADER, MARKDOWN, cells, read_table
from aotbuild.commands.build import check_writable
from aotbuild.commands.output import json_option, make_out, print_json, print_table, store_option
from aotbuild.commands.progress import progress
from aotbuild.commands.quiet import quieten
from aotbuild.commands.request import check_installed
from aotbuild.gpus import find_gpu
from aotbuild.recipe import QUANTIZATIONS, load_recipe, recipe_names
from aotbuild.target import CPU_LEVELS


@click.command()
@click.option(
    "--only",
    multiple=True,
    metavar="RECIPE|PATH.toml",
    help="Build this recipe; may be given again. All that ship if not said.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    required=True,
    metavar="NAME|sm_XY|auto|cpu",
    help="What to build for: a100, cpu; may be given again.",
)
@click.option(
    "--scope",
    type=click.Choice(("full", "regional")),
    default="full",
    help="Whole components, or their repeated blocks.",
)
@click.option("--quant", type=click.Choice(QUANTIZATIONS), help="As the recipe says if not said.")
@click.option("--no-verify", is_flag=True, help="Leave verification to `aotbuild verify`.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-results"),
    show_default=True,
    help=f"Folder of {CSV} and {MARKDOWN}; rows of earlier runs stay.",
)
@store_option
@json_option
@click.pass_context
def coverage(
    ctx: click.Context,
    only: tuple[str, ...],
    gpus: tuple[str, ...],
    scope: str,
    quant: str | None,
    no_verify: bool,
    out: Path,
    store: Path,
    as_json: bool,
) -> None:
    """Build every recipe at its own size, and write down what each artifact is and took.

    Without --only it takes hours. It may be stopped at any time: rows are written as they come, and
    the same command goes on. What fails is a row with its error, and makes the exit code 1.
    """
    recipes = [load_recipe(name) for name in dict.fromkeys(only or recipe_names())]
    for gpu in gpus:
        if gpu not in ("cpu", "auto", *CPU_LEVELS):
            find_gpu(gpu)
    check_installed()
    out = make_out(out)
    read_table(out)
    check_writable(store)
    quieten()
    from aotbuild.bench import coverage as bench_coverage
    from aotbuild.build.host import find_toolchain

    find_toolchain()
    plan = bench_coverage.Plan(
        recipes=tuple(recipe.override(quantization=quant) for recipe in recipes),
        gpus=tuple(dict.fromkeys(gpus)),
        scope=scope,
        store=store.expanduser(),
        out=out,
        verify=not no_verify,
    )
    with progress() as on_event:
        rows = bench_coverage.measure(
            plan, on_event=on_event, say=lambda t: click.echo(t, err=True)
        )
    if as_json:
        print_json({"rows": [asdict(r) for r in rows], "csv": str(out / CSV)})
    else:
        _print_rows(rows)
        click.echo(f"\n{out / CSV}, {MARKDOWN}")
    if any(row.error for row in rows):
        ctx.exit(1)


def _print_rows(rows: list[Row]) -> None:
    """The table with a column for the target, and failures below it."""
    fine = [r for r in rows if not r.error]
    print_table(("target", *HEADER), ((r.arch, *cells(r)) for r in fine))
    for r in rows:
        if r.error:
            name = " ".join(filter(None, (r.recipe, r.unit, r.call)))
            click.echo(f"{r.arch}  {name} failed: {r.error}")
