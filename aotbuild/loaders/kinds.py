"""A component's blocks by what they are, and the regional artifacts that fit each kind of them.

Opens and binds none (`regional` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

import torch
from torch import nn

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.canonical import digest
from aotbuild.loaders.blocks import Sources, find_blocks, identify_block
from aotbuild.loaders.choosing import Candidate, Fitted, facts_from, judged
from aotbuild.loaders.component import device_of, is_weightless, precision_of
from aotbuild.loaders.options import Options
from aotbuild.loaders.state import State, is_hooked, module_state


@dataclass(slots=True, kw_only=True)
class Kind(Generic[Candidate]):
    """Blocks that are alike, and what serves them.

    Attributes:
        facts: what an artifact must fit. state: their `module_state`. device: where they are.
        hooked: whether something else than the class's own code runs when they are called.
        blocks: by path in the component.
        chosen: the entries that fit, best first.
        reasons: why the nearest of the others doesn't; empty where nothing was near.
    """

    facts: match.ModuleFacts
    state: State
    device: torch.device
    hooked: bool
    blocks: dict[str, nn.Module] = field(default_factory=dict)
    chosen: list[Candidate] = field(default_factory=list)
    reasons: tuple[str, ...] = ()

    @property
    def class_name(self) -> str:
        """Of the blocks."""
        return self.facts.identity.class_name

    def is_for(self, entry: Candidate) -> bool:
        """Whether `entry` was built from a block of the class, with weights of the same shapes."""
        ours, theirs = self.facts.identity, entry.manifest.module
        return (ours.class_name, ours.config_sha256) == (theirs.class_name, theirs.config_sha256)


def judge_blocks(
    name: str,
    module: nn.Module,
    entries: Sequence[Candidate],
    device: torch.device,
    options: Options,
    found: Fitted,
) -> list[Kind[Candidate]]:
    """The blocks of `module`, the component `name`, by kind, each with the entries that fit it.

    `found` gets the entries that fit none, each with the fewest reasons that some kind gives.

    Args:
        device: where blocks without tensors run.
    """
    blocks = find_blocks(module, {e.manifest.module.class_name for e in entries})
    kinds: list[Kind[Candidate]] = _kinds(blocks, precision_of(module), device)
    refused: dict[str, tuple[str, ...]] = {}
    for kind in kinds:
        for key, why in _judge(kind, entries, options).items():
            kind.reasons = why
            if key not in refused or len(why) < len(refused[key]):
                refused[key] = why
    fitting = {e.manifest.key for kind in kinds for e in kind.chosen}
    for entry in entries:
        if entry.manifest.key not in fitting:
            near = refused.get(entry.manifest.key)
            found.turn_down(entry, near or _stranger(name, entry, kinds, options))
    return kinds


def _kinds(
    blocks: Mapping[str, nn.Module], precision: str, device: torch.device
) -> list[Kind[Candidate]]:
    """The blocks by class, weights, source, state and device."""
    kinds: dict[str, Kind[Candidate]] = {}
    sources: Sources = {}
    for path, block in blocks.items():
        identity, state = identify_block(block, sources), module_state(block)
        hooked = is_hooked(block)
        here = device_of(block) if _has_tensors(block) else device
        key = digest([identity.to_json(), state, hooked, str(here)])
        if key not in kinds:
            facts = match.ModuleFacts(
                identity=identity, state=state, precision=precision, device=here.type
            )
            kinds[key] = Kind(facts=facts, state=state, device=here, hooked=hooked)
        kinds[key].blocks[path] = block
    return list(kinds.values())


def _has_tensors(block: nn.Module) -> bool:
    return any(True for of in (block.parameters(), block.buffers()) for _ in of)


def _judge(
    kind: Kind[Candidate], entries: Iterable[Candidate], options: Options
) -> dict[str, tuple[str, ...]]:
    """Choose for `kind` those that fit; by key, the reasons of others of its class and weights."""
    mine = [e for e in entries if kind.is_for(e)]
    first = next(iter(kind.blocks.values()))
    if kind.hooked or is_weightless(first):
        what = "a hook or a replaced method that a swap would bypass"
        why = f"The block has {what}." if kind.hooked else "The block has no weights."
        return {e.manifest.key: (why,) for e in mine}
    scratch = Fitted()
    machine = probe.this_machine(str(kind.device))
    kind.chosen = judged(mine, facts_from(kind.facts), machine, options, scratch)
    reasons = {r.key: r.reasons for r in scratch.rejections}
    keys = (e.manifest.key for e in mine)
    return {key: reasons[key[:12]] for key in keys if key[:12] in reasons}


def _stranger(
    name: str, entry: Candidate, kinds: Iterable[Kind[Candidate]], options: Options
) -> tuple[str, ...]:
    """Why `entry` doesn't serve, which has no block's weights."""
    cls = entry.manifest.module.class_name
    near = next((k for k in kinds if k.class_name == cls), None)
    if near is None:
        return (f"{name} has no block of the class {cls}.",)
    scratch = Fitted()
    machine = probe.this_machine(str(near.device))
    judged([entry], facts_from(near.facts), machine, options, scratch)
    return scratch.rejections[0].reasons
