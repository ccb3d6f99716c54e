"""`doctor`: this machine, and a verdict with reasons on each artifact of a folder; loads none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.store import Store
from aotbuild.commands import artifacts
from aotbuild.commands.opening import open_store
from aotbuild.commands.output import json_option, print_json, store_option
from aotbuild.errors import SourceError, ToolchainError
from aotbuild.target import Accepted, Target, Verdict, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine as artifacts are judged by it.

    Attributes:
        target: with its GPU, where it has one that torch can use.
        cpu: its CPU alone, which CPU artifacts are judged by.
    """

    target: Target
    cpu: Target

    def judge(self, store: Store, entry: Entry) -> Verdict:
        """Whether the artifact runs here, whatever pipeline it is for."""
        built = entry.manifest.target
        machine = self.cpu if built.device == "cpu" else self.target
        torch = match.verified_torch(store.verifications(entry))
        return judge(built, machine, verified_torch=torch)


@click.command()
@click.argument("source", required=False)
@store_option
@json_option
def doctor(source: str | None, store: Path, as_json: bool) -> None:
    """Say what this machine is, which artifacts of SOURCE it would use, and why not the others.

    SOURCE is a folder of artifacts; the store where it isn't given.
    """
    opened = open_store(store) if source is None else Store(_folder(source))
    found = list(opened.entries())
    machine = Machine(target=probe.this_machine(), cpu=probe.this_machine("cpu"))
    verdicts = [(e, machine.judge(opened, e)) for e in found if isinstance(e, Entry)]
    broken = [e for e in found if isinstance(e, Broken)]
    if as_json:
        document = {
            "target": machine.target.to_json(),
            "versions": probe.versions(),
            "toolchain": toolchain(),
            "source": str(opened.root),
            "artifacts": [_judged_json(opened, e, v) for e, v in verdicts],
            "broken": [artifacts.broken_json(b) for b in broken],
        }
        print_json(document)
        return
    _print_machine(machine, opened)
    for entry, verdict in verdicts:
        _print_verdict(entry, verdict)
    for b in broken:
        click.echo(f"broken    {b.reason}")
    if not found:
        click.echo("no artifacts there; `aotbuild build RECIPE --gpu auto` makes some")


def toolchain() -> str:
    """The C++ compiler that a build would use, or why there is none."""
    from aotbuild.build.host import find_toolchain

    try:
        return find_toolchain().compiler_version
    except ToolchainError as e:
        return str(e)


def _folder(source: str) -> Path:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise SourceError(
            f"{source} isn't a folder. `doctor` reads a store or a folder laid out like one; "
            "collections on the Hub come with a later release."
        )
    return folder


def _judged_json(store: Store, entry: Entry, verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Accepted):
        judged = {"verdict": "accepted", "reasons": [verdict.note] if verdict.note else []}
    else:
        judged = {"verdict": "rejected", "reasons": list(verdict.reasons)}
    return {**artifacts.to_json(store, entry), **judged}


def _print_machine(machine: Machine, store: Store) -> None:
    t = machine.target
    cuda = f", CUDA {t.cuda}" if t.cuda else ", a build for the CPU"
    versions = (f"{n} {v or 'not installed'}" for n, v in probe.versions().items() if n != "torch")
    access = "" if os.access(store.root, os.W_OK) or not store.root.exists() else ", read-only"
    click.echo(f"target    {t.device} {t.arch} ({t.system}, {t.processor})")
    click.echo(f"torch     {t.torch}{cuda}")
    click.echo(f"with      {', '.join(versions)}")
    click.echo(f"libc      GLIBC {t.glibc or '?'}, GLIBCXX {t.glibcxx or '?'}")
    click.echo(f"compiler  {toolchain()}")
    click.echo(f"artifacts {store.root}{access}\n")


def _print_verdict(entry: Entry, verdict: Verdict) -> None:
    m = entry.manifest
    name = f"{m.component} {m.signature.slug} {m.target.arch} {m.key[:12]}"
    if isinstance(verdict, Accepted):
        click.echo(f"accepted  {name}{f'  ({verdict.note})' if verdict.note else ''}")
        return
    click.echo(f"rejected  {name}")
    for reason in verdict.reasons:
        click.echo(f"          {reason}")
