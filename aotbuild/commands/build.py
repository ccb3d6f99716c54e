"""`build` and `plan`: a request carried out, or only looked at; `build.run` does both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aotbuild.build.host import find_toolchain
from aotbuild.build.request import BuildRequest, Built, Planned
from aotbuild.cache.store import Store
from aotbuild.commands.layers import print_layers, unmatched
from aotbuild.commands.output import human_bytes, human_seconds, make_out, print_json, print_table
from aotbuild.commands.progress import progress
from aotbuild.commands.quiet import quieten
from aotbuild.commands.request import Arguments, build_arguments, make_request
from aotbuild.target import Target


@click.command(short_help="Compile a recipe's components into the store.")
@build_arguments
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also copy the artifacts there, into a folder that `aotbuild.load` takes.",
)
def build(*, as_json: bool, out: Path | None, **options: Any) -> None:
    """Compile the components of RECIPE into the store.

    What isn't said comes from the recipe. What the store has already isn't built again.
    """
    request = make_request(Arguments(**options))
    check_writable(request.store)
    out = None if out is None else make_out(out)
    target = find_target(request)
    with progress() as on_event:
        from aotbuild.build import run

        built = run.build(request, on_event)
    if out is not None:
        from aotbuild.commands.copy import copy_artifacts

        copy_artifacts(request.store, [b.key for b in built], out)
    if as_json:
        print_json({"target": target.to_json(), "artifacts": [b.to_json() for b in built]})
    else:
        _print_built(built)
        if out is not None:
            click.echo(f"copied to {out}, which `aotbuild.load` takes")


@click.command(short_help="Say what `build` would compile, and what the store already has.")
@build_arguments
def plan(*, as_json: bool, **options: Any) -> None:
    """Say what `build` with the same arguments would compile, and what is there already."""
    request = make_request(Arguments(**options))
    target = find_target(request)
    with progress() as on_event:
        from aotbuild.build import run

        planned = run.plan(request, on_event)
    if as_json:
        artifacts = [p.to_json() for p in planned]
        notes = unmatched(planned)
        print_json({"target": target.to_json(), "artifacts": artifacts, "notes": notes})
    else:
        _print_planned(planned)
        print_layers(planned)


def check_writable(store: Path) -> None:
    """Find out before the work, not after it.

    Raises:
        StoreError: the store can't be written.
    """
    with Store(store).staging():
        pass


def find_target(request: BuildRequest) -> Target:
    """The request's target, found before anything heavier than torch is imported.

    Raises:
        ToolchainError: no C++ compiler.
        TargetError: a target that this torch can't build for, or that can't do what is asked.
    """
    find_toolchain()
    quieten()
    from aotbuild.build.targets import target_for

    return target_for(request.gpu, request.recipe)


def _print_built(built: list[Built]) -> None:
    rows = []
    for b in built:
        seconds = sum(s for s in b.seconds.values() if s)
        verified = "yes" if b.verified else "no"
        how = "in the store" if b.cached else human_seconds(seconds)
        rows.append((b.component, b.key[:12], human_bytes(b.bytes), how, verified, str(b.path)))
    print_table(("component", "key", "size", "built in", "verified", "path"), rows)


def _print_planned(planned: list[Planned]) -> None:
    rows = []
    for p in planned:
        first = next(p.signature.sizes(), "no tensors")
        state = "in the store" if p.cached else "to build"
        blocks = str(len(p.blocks) or "whole")
        size = (p.resolution, str(p.batch), p.variant)
        rows.append((p.component, blocks, *size, first, p.key[:12], state))
    header = ("component", "blocks", "call", "batch", "variant", "first input", "key", "state")
    print_table(header, rows)
