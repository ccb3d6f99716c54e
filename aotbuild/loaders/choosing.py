"""Which artifacts a module is served by, of those that there are, and why the others don't serve.

Whether one fits is `cache.match`'s to judge; opens and binds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.cache.quantization import otherwise_quantized
from aotbuild.cache.requirements import required
from aotbuild.loaders.loaded import Rejection
from aotbuild.loaders.options import Options
from aotbuild.loaders.origin import origin
from aotbuild.loaders.source import Offer, records_of, rejection
from aotbuild.loaders.state import current_backend
from aotbuild.loaders.unit import Unit
from aotbuild.target import Rejected, Target

Facts = Callable[[Entry | Offer], match.ModuleFacts]
Candidate = TypeVar("Candidate", Entry, Offer)


@dataclass(slots=True)
class Fitted:
    """What became of a component's artifacts; `partial`: labels of which some blocks got none."""

    units: list[Unit] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    partial: set[str] = field(default_factory=set)

    def turn_down(self, entry: Entry | Offer, reasons: Sequence[str]) -> None:
        """Keep why `entry` doesn't serve."""
        self.rejections.append(rejection(entry, reasons))

    def turn_down_all(self, entries: Sequence[Entry | Offer], reason: str) -> None:
        """Keep `reason` for each of `entries`."""
        self.rejections += [rejection(e, [reason]) for e in entries]


def by_scope(
    entries: Sequence[Candidate], options: Options, found: Fitted
) -> tuple[list[Candidate], list[Candidate]]:
    """Those of whole components, and those of their blocks, but for the scope that isn't wanted.

    Under "regional" a component is served whole only if there is nothing of its blocks.
    """
    whole = [e for e in entries if e.manifest.scope == "full"]
    blocks = [e for e in entries if e.manifest.scope != "full"]
    if options.scope == "full":
        found.turn_down_all(blocks, "It is of repeated blocks, and scope='full' was asked for.")
        return whole, []
    if options.scope == "regional" and blocks:
        found.turn_down_all(whole, "It is of the whole, and scope='regional' was asked for.")
        return [], blocks
    return whole, blocks


def served_whole(name: str) -> str:
    """Why artifacts of the blocks of the component `name` don't serve, where it is served whole."""
    return f"{name} is served whole; scope='regional' would use it."


def facts_from(facts: match.ModuleFacts) -> Facts:
    """`facts` as each artifact asks for them: with the backend's switches that it recorded."""
    return lambda entry: replace(facts, state=state_for(entry.manifest, facts.state))


def packed_entries(
    name: str, entries: list[Candidate], options: Options, found: Fitted
) -> list[Candidate]:
    """Those that carry constants, of the checkpoint that was asked for."""
    asked = None if options.checkpoint is None else origin(options.checkpoint, name)
    kept = []
    for entry in entries:
        packed = entry.manifest.packed
        if packed is None:
            found.turn_down(
                entry,
                [
                    f"{name} has no weights here, and the artifact carries none; "
                    "`aotbuild build --pack-weights` makes one that does."
                ],
            )
        elif asked is not None and (reason := asked.reason(packed)):
            found.turn_down(entry, [reason])
        else:
            kept.append(entry)
    return kept


def trusted(
    entries: list[Candidate], machine: Target, options: Options, found: Fitted
) -> list[Candidate]:
    """Those that needn't compare their first call with eager, which can't run without weights."""
    kept = []
    for entry in entries:
        records = records_of(entry, options.store)
        if not options.self_check or match.verified(entry.manifest, machine, records=records):
            kept.append(entry)
            continue
        found.turn_down(
            entry,
            [
                f"No record says that it was verified on {machine.arch}, and without weights there "
                "is no eager module to compare its first call with. "
                f"`aotbuild verify {entry.manifest.key[:12]}` adds one; self_check=False trusts it."
            ],
        )
    return kept


def judged(
    entries: list[Candidate], facts: Facts, machine: Target, options: Options, found: Fitted
) -> list[Candidate]:
    """The entries that fit, best first."""
    fitting = []
    offered = [e.manifest for e in entries]
    for entry in entries:
        if reason := otherwise_quantized(entry.manifest, options.quant, offered):
            found.turn_down(entry, [reason])
            continue
        manifest, here = entry.manifest, facts(entry)
        records = records_of(entry, options.store)
        how = {"trial": options.trial, "bundles": options.bundles}
        verdict = match.judge(manifest, here, machine, records=records, **how)
        if isinstance(verdict, Rejected):
            # Versions are for refusals and for what few artifacts require; reading them takes as
            # long as binding a UNet.
            needed = probe.installed(required(manifest.parts))
            here = replace(here, versions=probe.versions() | needed)
            verdict = match.judge(manifest, here, machine, records=records, **how)
        if isinstance(verdict, Rejected):
            found.turn_down(entry, verdict.reasons)
        elif options.require_verified and not match.verified(manifest, machine, records=records):
            found.turn_down(
                entry,
                [
                    f"No record says that it was verified on {machine.arch}; "
                    f"`aotbuild verify {manifest.key[:12]}` adds one."
                ],
            )
        else:
            fitting.append((match.rank(manifest, machine, records=records), entry))
    return [e for _, e in sorted(fitting, key=lambda pair: pair[0])]


def state_for(manifest: match.Described, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """`state` with the backend's switches, where the artifact recorded them."""
    expected = manifest.state.get("backend")
    return state if expected is None else {**state, "backend": current_backend(expected)}
