"""`doctor`: this machine, and a verdict with reasons on each artifact of a folder; loads none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.hub import Hub
from aotbuild.cache.requirements import missing, required
from aotbuild.cache.store import Store
from aotbuild.commands import artifacts
from aotbuild.commands.lookup import Source, open_source
from aotbuild.commands.opening import open_store
from aotbuild.commands.output import json_option, print_json, store_option
from aotbuild.errors import ToolchainError
from aotbuild.target import Accepted, Rejected, Target, Verdict, judge, verdict_of


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
        return self.verdict(entry.manifest, store.verifications(entry))

    def verdict(self, built: match.Described, records: Iterable[Mapping[str, Any]]) -> Verdict:
        """The same, of a manifest or of what an index tells, and its verification records."""
        machine = self.cpu if built.target.device == "cpu" else self.target
        verdict = judge(built.target, machine, verified_torch=match.verified_torch(records))
        needed = required(built.parts)
        lacking = tuple(missing(needed, probe.installed(needed)))
        reasons = verdict.reasons if isinstance(verdict, Rejected) else ()
        return verdict_of((*reasons, *lacking)) if lacking else verdict


@click.command()
@click.argument("source", required=False)
@store_option
@json_option
def doctor(source: str | None, store: Path, as_json: bool) -> None:
    """Say what this machine is, which artifacts of SOURCE it would use, and why not the others.

    SOURCE is a folder of artifacts, a lockfile (./FILE) or a collection on the Hub (ORG/NAME), of
    which the index alone is read; the store where it isn't given.
    """
    if source is not None and not Path(source).expanduser().is_dir():
        _judge_remote(open_source(Hub(), source), Store(store), as_json)
        return
    opened = open_store(store) if source is None else Store(Path(source))
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
    access = "" if os.access(opened.root, os.W_OK) or not opened.root.exists() else ", read-only"
    _print_machine(machine, f"{opened.root}{access}")
    for entry, verdict in verdicts:
        _print_verdict(entry.manifest, verdict)
    for b in broken:
        click.echo(f"{b.word:<9} {b.reason}")
    if not found:
        gpu = "cpu" if machine.target.device == "cpu" else "auto"
        command = f"aotbuild build RECIPE --gpu {gpu} --store {opened.root}"
        click.echo(f"no artifacts there; `{command}` makes some")


def toolchain() -> str:
    """The C++ compiler that a build would use, or why there is none."""
    from aotbuild.build.host import find_toolchain

    try:
        return find_toolchain().compiler_version
    except ToolchainError as e:
        return str(e)


def _judge_remote(source: Source, store: Store, as_json: bool) -> None:
    """The verdicts on what an index or a lockfile tells of."""
    machine = Machine(target=probe.this_machine(), cpu=probe.this_machine("cpu"))
    verdicts = [(i, machine.verdict(i, i.verification)) for i in source.items]
    if not as_json:
        at = f" at {source.commit}" if source.commit else ""
        _print_machine(machine, f"{source.name}{at}")
        for item, verdict in verdicts:
            _print_verdict(item, verdict)
        return
    here = {e.manifest.key for e in store.entries() if isinstance(e, Entry)}
    document = {
        "target": machine.target.to_json(),
        "versions": probe.versions(),
        "toolchain": toolchain(),
        "source": source.name,
        "revision": source.commit,
        "artifacts": [
            {**artifacts.item_json(i, source.name, here), **_verdict_json(i, v)}
            for i, v in verdicts
        ],
        "broken": [],
    }
    print_json(document)


def _judged_json(store: Store, entry: Entry, verdict: Verdict) -> dict[str, Any]:
    return {**artifacts.to_json(store, entry), **_verdict_json(entry.manifest, verdict)}


def _notes(m: match.Described, verdict: Accepted) -> list[str]:
    """What is less than ideal about an artifact that runs here."""
    bundle = "a JIT-cache bundle: by allow_jit_cache=True alone"
    notes = (verdict.note, bundle if m.backend == INDUCTOR_CACHE else None)
    return [n for n in notes if n]


def _verdict_json(m: match.Described, verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Accepted):
        return {"verdict": "accepted", "reasons": _notes(m, verdict)}
    return {"verdict": "rejected", "reasons": list(verdict.reasons)}


def _print_machine(machine: Machine, where: str) -> None:
    t = machine.target
    cuda = f", CUDA {t.cuda}" if t.cuda else ", a build for the CPU"
    versions = (f"{n} {v or 'not installed'}" for n, v in probe.versions().items() if n != "torch")
    click.echo(f"target    {t.device} {t.arch} ({t.system}, {t.processor})")
    click.echo(f"torch     {t.torch}{cuda}")
    click.echo(f"with      {', '.join(versions)}")
    click.echo(f"libc      GLIBC {t.glibc or '?'}, GLIBCXX {t.glibcxx or '?'}")
    click.echo(f"compiler  {toolchain()}")
    click.echo(f"artifacts {where}\n")


def _print_verdict(m: match.Described, verdict: Verdict) -> None:
    name = f"{m.component} {m.signature.slug} {m.target.arch} {m.key[:12]}"
    if isinstance(verdict, Accepted):
        notes = "; ".join(_notes(m, verdict))
        click.echo(f"accepted  {name}{f'  ({notes})' if notes else ''}")
        return
    click.echo(f"rejected  {name}")
    for reason in verdict.reasons:
        click.echo(f"          {reason}")
