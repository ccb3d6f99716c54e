"""One component's artifacts: those that fit are mapped, bound and swapped in, best first.

Whether an artifact fits is `cache.match`'s to judge, whether a call does is `dispatch`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.errors import AotbuildError
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.component import Component, precision_of
from aotbuild.loaders.dispatch import Dispatcher
from aotbuild.loaders.loaded import Rejection, Unit
from aotbuild.loaders.options import Options
from aotbuild.loaders.origin import check_one_origin, origin
from aotbuild.loaders.packed import map_constants
from aotbuild.loaders.runner import Runner, open_library
from aotbuild.loaders.source import Offer, records_of, rejection
from aotbuild.loaders.state import current_backend, identify, is_hooked
from aotbuild.loaders.swap import Swap, check_free
from aotbuild.target import Rejected, Target

Facts = Callable[[Entry | Offer], match.ModuleFacts]
Candidate = TypeVar("Candidate", Entry, Offer)


@dataclass(slots=True)
class Fitted:
    """What became of a component's artifacts."""

    units: list[Unit] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    def turn_down(self, entry: Entry | Offer, reasons: Sequence[str]) -> None:
        """Keep why `entry` doesn't serve."""
        self.rejections.append(rejection(entry, reasons))


def fit_module(
    name: str, module: nn.Module, entries: list[Entry], device: torch.device, options: Options
) -> Fitted:
    """Swap into `module`, the component `name`, those of `entries` that fit it.

    Args:
        device: where it runs: where its weights are, or would be.

    Raises:
        LoadError: it is swapped already, or nobody said which of several packed weights.
        UsageError: a checkpoint to compare with that isn't one.
    """
    for method in {e.manifest.method for e in entries}:
        check_free(module, name, method)
    found = Fitted()
    if is_hooked(module):
        reason = f"{name} has a hook or a replaced method (offloading?) that a swap would bypass."
        found.rejections = [rejection(e, [reason]) for e in entries]
        return found
    if not entries:
        return found
    component = Component(name, module, device)
    facts = match.ModuleFacts(
        identity=identify(module),
        state=component.state,
        precision=precision_of(module),
        device=device.type,
    )
    if component.weightless:
        entries = packed_entries(name, entries, options, found)
    fit(component, entries, facts_from(facts), options, found)
    component.settle()
    return found


def facts_from(facts: match.ModuleFacts) -> Facts:
    """`facts` as each artifact asks for them: with the backend's switches that it recorded."""
    return lambda entry: replace(facts, state=state_for(entry.manifest, facts.state))


def fit(
    component: Component, entries: list[Entry], facts: Facts, options: Options, found: Fitted
) -> None:
    """Fill `found` with the units of `component` and the rejections of the other `entries`."""
    machine = probe.this_machine(str(component.device))
    chosen = judged(entries, facts, machine, options, found)
    if component.weightless:
        chosen = trusted(chosen, machine, options, found)
        check_one_origin(component.name, [p for e in chosen if (p := e.manifest.packed)])
    mapped: dict[str, dict[str, Tensor]] = {}
    by_label: dict[str, list[Artifact]] = {}
    for entry in chosen:
        made = _make(entry, component, machine, options, mapped)
        if isinstance(made, Rejection):
            found.rejections.append(made)
        else:
            by_label.setdefault(entry.manifest.component, []).append(made)
    strict = options.strict or component.weightless
    found.units = [_swap(component, n, a, strict) for n, a in sorted(by_label.items())]


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
    for entry in entries:
        manifest, here = entry.manifest, facts(entry)
        records = records_of(entry, options.store)
        verdict = match.judge(manifest, here, machine, records=records, trial=options.trial)
        if isinstance(verdict, Rejected):
            # Versions only word a refusal, and reading them takes as long as binding a UNet.
            here = replace(here, versions=probe.versions())
            verdict = match.judge(manifest, here, machine, records=records, trial=options.trial)
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


def _make(
    entry: Entry,
    component: Component,
    machine: Target,
    options: Options,
    mapped: dict[str, dict[str, Tensor]],
) -> Artifact | Rejection:
    """The artifact mapped and bound, or why it can't be; `mapped` are packed constants by file."""
    manifest = entry.manifest
    runner: Runner | None = None
    try:
        started = time.perf_counter()
        descriptor = options.store.open_library(entry)
        library = open_library(manifest.library.sha256, descriptor)
        runner = Runner(library, component.device, options.num_runners)
        records = options.store.verifications(entry)
        opened = time.perf_counter()
        constants = _constants(entry, component, mapped)
        weights_s = time.perf_counter() - opened
        artifact = Artifact(
            manifest,
            component,
            runner,
            component.device,
            verified=match.verified(manifest, machine, records=records),
            self_check=options.self_check,
            packed=constants,
        )
        artifact.weights_s = weights_s
        artifact.load_s = time.perf_counter() - started - weights_s
        # What frees weights is bound once every component is known to be served.
        later = options.frees and artifact.quantized and not component.weightless
        unfit = artifact.binding.judge() if later else artifact.bind()
    except AotbuildError as e:
        if runner is not None:
            runner.close()
        return rejection(entry, [str(e)])
    if unfit is not None and not artifact.binding.only_cast:
        artifact.binding.release()
        return rejection(entry, [f"The module's weights don't fit: {unfit}."])
    return artifact


def _constants(
    entry: Entry, component: Component, mapped: dict[str, dict[str, Tensor]]
) -> dict[str, Tensor] | None:
    """The packed constants for a component without weights; artifacts with equal files share."""
    packed = entry.manifest.packed
    if packed is None or not component.weightless:
        return None
    file = packed.file.sha256
    if file not in mapped:
        mapped[file] = map_constants(entry.folder, entry.manifest, component.device)
    return mapped[file]


def _swap(component: Component, label: str, artifacts: list[Artifact], strict: bool) -> Unit:
    method = artifacts[0].manifest.method
    dispatcher = Dispatcher(component, label, method, artifacts, strict=strict)
    swap = Swap(component.module, method, dispatcher)
    return Unit(name=label, component=component, dispatcher=dispatcher, swap=swap)
