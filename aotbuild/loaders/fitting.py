"""One component's artifacts: those that fit are mapped, bound and swapped in, best first.

Which those are `choosing` says, whether a call is served `dispatch`.
"""

from __future__ import annotations

import torch
from torch import nn

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.assembling import Assembler, swap_in
from aotbuild.loaders.choosing import (
    Facts,
    Fitted,
    by_scope,
    facts_from,
    judged,
    packed_entries,
    served_whole,
    trusted,
)
from aotbuild.loaders.component import Component, precision_of
from aotbuild.loaders.loaded import Rejection
from aotbuild.loaders.options import Options
from aotbuild.loaders.origin import check_one_origin
from aotbuild.loaders.regional import fit_blocks
from aotbuild.loaders.state import identify, is_hooked
from aotbuild.loaders.swap import check_free
from aotbuild.loaders.tally import Tally


def fit_module(
    name: str, module: nn.Module, entries: list[Entry], device: torch.device, options: Options
) -> Fitted:
    """Swap into `module`, the component `name`, those of `entries` that fit it.

    Those of its blocks serve where none of the whole does, or where they were asked for.

    Args:
        device: where it runs: where its weights are, or would be.

    Raises:
        LoadError: it is swapped already, or nobody said which of several packed weights.
        UsageError: a checkpoint to compare with that isn't one.
    """
    found = Fitted()
    check_free(module, name, {e.manifest.method for e in entries})
    whole, blocks = by_scope(entries, options, found)
    if whole:
        _fit_whole(name, module, whole, device, options, found)
    if found.units:
        found.turn_down_all(blocks, served_whole(name))
    elif blocks:
        fit_blocks(name, module, blocks, device, options, found)
    return found


def _fit_whole(
    name: str,
    module: nn.Module,
    entries: list[Entry],
    device: torch.device,
    options: Options,
    found: Fitted,
) -> None:
    if is_hooked(module):
        found.turn_down_all(
            entries,
            f"{name} has a hook or a replaced method (offloading?) that a swap would bypass.",
        )
        return
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


def fit(
    component: Component, entries: list[Entry], facts: Facts, options: Options, found: Fitted
) -> None:
    """Fill `found` with the units of `component` and the rejections of the other `entries`."""
    machine = probe.this_machine(str(component.device))
    chosen = judged(entries, facts, machine, options, found)
    if component.weightless:
        chosen = trusted(chosen, machine, options, found)
        check_one_origin(component.name, [p for e in chosen if (p := e.manifest.packed)])
    assembler = Assembler(options)
    by_label: dict[str, list[Artifact]] = {}
    for entry in chosen:
        made = assembler.make(entry, component, machine)
        if isinstance(made, Rejection):
            found.rejections.append(made)
        else:
            by_label.setdefault(entry.manifest.component, []).append(made)
    strict = options.strict or component.weightless
    found.units = [
        swap_in(component, label, artifacts, Tally(), strict=strict)
        for label, artifacts in sorted(by_label.items())
    ]
