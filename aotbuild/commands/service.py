"""`bench service`: a service under more load than it can serve; `aotbuild.bench.service` asks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from aotbuild.commands.output import (
    human_seconds,
    json_option,
    make_out,
    print_json,
    store_option,
)
from aotbuild.commands.progress import progress
from aotbuild.commands.quiet import quieten
from aotbuild.commands.request import check_installed
from aotbuild.errors import UsageError, VerificationError
from aotbuild.recipe import DTYPES, check_resolution


@click.command()
@click.option("--url", help="Of a service that runs; the example is started if not said.")
@click.option("--requests", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--clients", type=click.IntRange(min=1), default=32, show_default=True)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Requests per second, in multiples of what the service serves.",
)
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--size", metavar="WxH", help="In pixels; the first that is served if not said.")
@click.option("--checkpoint", metavar="FOLDER|REPO", help="Whose images they are; else `tiny`'s.")
@click.option("--dtype", type=click.Choice(tuple(DTYPES)), default="fp32", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-results"),
    show_default=True,
    help="Folder for the CSV.",
)
@store_option
@json_option
def service(
    url: str | None,
    requests: int,
    clients: int,
    load: float,
    steps: int,
    size: str | None,
    checkpoint: str | None,
    dtype: str,
    out: Path,
    store: Path,
    as_json: bool,
) -> None:
    """Ask a service for more images than it can draw; compare each with eager's.

    Starts `examples/serve` of this clone, or takes the service at --url. Fails where an image
    differs by more than 1/255 from eager's for its seed, or a request gets neither an image nor a
    429.
    """
    check_installed()
    if size is not None:
        try:
            check_resolution(size, 1)
        except ValueError as e:
            raise UsageError(f"--size: {e}.") from e
    out = make_out(out)
    quieten()
    from aotbuild.bench import service as bench_service
    from aotbuild.bench.demo import build_artifacts, demo_recipe
    from aotbuild.bench.facts import facts
    from aotbuild.bench.service_summary import complaints, summary, write_csv

    if url is None and checkpoint is None:
        with progress() as on_event:
            build_artifacts(demo_recipe(), store.expanduser(), on_event)
    with tempfile.TemporaryDirectory(prefix="work-", dir=out) as work:
        plan = bench_service.Plan(
            url=url,
            store=store,
            checkpoint=checkpoint,
            dtype=DTYPES[dtype],
            requests=requests,
            clients=clients,
            load=load,
            steps=steps,
            size=size,
            work=Path(work).resolve(),
        )
        measured = bench_service.measure(plan, say=lambda text: click.echo(text, err=True))
    known = {"size": measured.size, "steps": str(steps), "load": str(load), **facts()}
    path = out / "service.csv"
    write_csv(path, measured, known)
    found = summary(measured)
    if as_json:
        print_json({"facts": known, **found})
    else:
        _print(found)
        click.echo(str(path))
    if wrong := list(complaints(measured)):
        raise VerificationError(" ".join(wrong))


def _print(found: dict[str, Any]) -> None:
    click.echo(
        f"{found['requests']} requests: {found['answered']} images, {found['refused']} refused "
        f"(429), {found['lost']} lost; {found['images_per_s']:.1f} images/s"
    )
    click.echo(f"images after {_spread(found['latency_s'])}")
    if found["refusal_s"] is not None:
        click.echo(
            f"429s after {_spread(found['refusal_s'])}, the slowest "
            f"{human_seconds(found['slowest_refusal_s'])}; {found['refused_late']} after more than "
            "100 ms"
        )
    click.echo(
        f"largest difference of a pixel from eager's: {found['largest_difference']}/255; "
        f"{found['different']} images differ"
    )


def _spread(found: dict[str, float] | None) -> str:
    return (
        "-" if found is None else ", ".join(f"{human_seconds(s)} ({p})" for p, s in found.items())
    )
