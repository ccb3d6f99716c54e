"""Regional artifacts bound to every block of a component that they fit, each from one library.

Which fit `kinds` says; what is outside of the blocks runs as stock code.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from aotbuild import probe
from aotbuild.cache.artifact import Entry
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.assembling import Assembler, swap_in
from aotbuild.loaders.choosing import Fitted
from aotbuild.loaders.component import Component
from aotbuild.loaders.kinds import Kind, judge_blocks
from aotbuild.loaders.loaded import Rejection
from aotbuild.loaders.options import Options
from aotbuild.loaders.tally import Tally
from aotbuild.loaders.unit import Unit

_SHOWN = 2
_UNKNOWN = ("No artifact is of blocks with these weights.",)


class _Bound:
    """Blocks with artifacts bound to them, and the blocks that none is bound to, with reasons."""

    def __init__(self) -> None:
        self.served: list[tuple[str, Component, list[Artifact]]] = []
        self.left: dict[tuple[str, ...], list[str]] = {}
        self.refused: dict[tuple[str, tuple[str, ...]], Rejection] = {}

    def swap(self, options: Options) -> Iterator[Unit]:
        """Swap them in; those of one label count together."""
        tallies: dict[str, Tally] = {}
        for label, component, artifacts in self.served:
            tally = tallies.setdefault(label, Tally())
            yield swap_in(component, label, artifacts, tally, strict=options.strict)
            component.settle()

    def release(self) -> None:
        """Let go of what was bound, and never swapped in."""
        for _, component, artifacts in self.served:
            for artifact in artifacts:
                artifact.binding.release()
            component.weights.restore()


def fit_blocks(
    name: str,
    module: nn.Module,
    entries: list[Entry],
    device: torch.device,
    options: Options,
    found: Fitted,
) -> None:
    """Swap those of `entries` that fit into the blocks of `module`, the component `name`.

    `found` gets the units, one for each block, the rejections, and for each label the blocks of its
    class that nothing serves, as rejections too.
    """
    kinds = judge_blocks(name, module, entries, device, options, found)
    assembler = Assembler(options)
    labels = {e.manifest.module.class_name: e.manifest.component for e in entries}
    totals = dict.fromkeys(labels.values(), 0)
    bound = {label: _Bound() for label in labels.values()}
    try:
        for kind in kinds:
            label = labels[kind.class_name]
            totals[label] += len(kind.blocks)
            _bind(name, module, kind, label, assembler, bound[label])
    except BaseException:
        for blocks in bound.values():
            blocks.release()
        raise
    for label, blocks in sorted(bound.items()):
        found.units += blocks.swap(options)
        found.rejections += [*blocks.refused.values(), *_left(label, blocks, totals[label])]
        found.partial |= {label} if blocks.left and blocks.served else set()


def _bind(
    name: str,
    module: nn.Module,
    kind: Kind[Entry],
    label: str,
    assembler: Assembler,
    bound: _Bound,
) -> None:
    """Bind to each block of `kind` what was chosen for it."""
    machine = probe.this_machine(str(kind.device))
    for path, block in kind.blocks.items():
        component = Component(
            f"{name}.{path}" if path else name,
            block,
            kind.device,
            whole=module,
            state=kind.state,
        )
        artifacts: list[Artifact] = []
        bound.served.append((label, component, artifacts))
        for entry in kind.chosen:
            made = assembler.make(entry, component, machine)
            if isinstance(made, Rejection):
                bound.refused[made.key, made.reasons] = made
            else:
                artifacts.append(made)
        if not artifacts:
            bound.served.pop()
            why = ("What fits can't be bound.",) if kind.chosen else kind.reasons or _UNKNOWN
            bound.left.setdefault(why, []).append(path)


def _left(label: str, bound: _Bound, total: int) -> Iterator[Rejection]:
    """The blocks that nothing serves, as the report shows them."""
    for reasons, paths in bound.left.items():
        shown = ", ".join(paths[:_SHOWN]) + (", ..." if len(paths) > _SHOWN else "")
        yield Rejection(
            unit=label, key=f"{len(paths)} of {total} blocks", slug=shown, reasons=reasons
        )
