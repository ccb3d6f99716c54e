"""`lock`: a lockfile of a collection's artifacts, from which `load` and `prefetch` work."""

from __future__ import annotations

from pathlib import Path

import click

from aotbuild import probe
from aotbuild.cache.fetch import fetch_index
from aotbuild.cache.hub import Hub
from aotbuild.cache.lockfile import Lock
from aotbuild.cache.pinning import check_owner, pinned
from aotbuild.cache.seals import check_trusted
from aotbuild.commands.output import json_option, print_json
from aotbuild.commands.selecting import Selection, selecting, trust_option


@click.command()
@click.argument("repository", metavar="REPO")
@selecting
@click.option("--revision", metavar="REV", help="Commit, branch or tag.  [default: main]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("aotbuild.lock"),
    help="The file to write.  [default: ./aotbuild.lock]",
)
@trust_option
@json_option
def lock(
    repository: str,
    selection: Selection,
    revision: str | None,
    out: Path,
    trusted: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write down which artifacts of REPO are meant: commit, keys, and the digest of every file."""
    check_owner(repository, probe.allowed_owners())
    hub = Hub()
    commit = pinned(hub, repository, revision, allow_unpinned=True)
    index = fetch_index(hub, repository, commit)
    chosen = selection.of(index.items, repository)
    check_trusted(chosen, trusted)
    Lock(repository=repository, revision=commit, items=chosen).write(out)
    if as_json:
        named = [i.key for i in chosen]
        print_json({"path": str(out), "repository": repository, "revision": commit, "keys": named})
        return
    click.echo(f"{out}: {len(chosen)} artifacts of {repository} at {commit}")
    click.echo(f"    aotbuild prefetch {out}    # while an image is built")
    click.echo(f"    aotbuild.load(pipe, Path({str(out)!r}))")
