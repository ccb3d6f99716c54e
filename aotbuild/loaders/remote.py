"""A collection on the Hub as a source: by its index, what serves is chosen, and that alone fetched.

What was fetched is judged again by its own manifest, like any artifact (`fitting`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from aotbuild import probe
from aotbuild.cache.artifact import Entry
from aotbuild.cache.fetch import fetch, fetch_index
from aotbuild.cache.hub import Hub
from aotbuild.cache.item import Item
from aotbuild.cache.lockfile import Lock
from aotbuild.cache.match import ModuleFacts
from aotbuild.cache.pinning import pinned
from aotbuild.cache.seals import distrust
from aotbuild.cache.units import is_unit_of
from aotbuild.canonical import digest
from aotbuild.errors import AotbuildError, ArtifactError, StoreError
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
from aotbuild.loaders.component import is_weightless, precision_of
from aotbuild.loaders.kinds import judge_blocks
from aotbuild.loaders.loaded import Rejection
from aotbuild.loaders.options import Options
from aotbuild.loaders.source import Offer, wanted_units
from aotbuild.loaders.state import identify, is_hooked, module_state
from aotbuild.loaders.swap import check_free

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Artifacts of one commit of a collection.

    Attributes:
        trusted: public keys of which one must have signed an artifact; None: no matter who.
        exact: take none of the store's whose manifest isn't the one that is vouched for.
    """

    repository: str
    commit: str
    items: tuple[Item, ...]
    trusted: frozenset[str] | None
    exact: bool
    hub: Hub

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit}"

    @property
    def offers(self) -> list[Offer]:
        """The artifacts, wherever they are; some may not be vouched for."""
        return [Offer(item) for item in self.items]

    def vouched(self, offers: Iterable[Offer], found: Fitted) -> list[Offer]:
        """Those that a trusted key has signed, where keys were named; `found` has the others."""
        kept = []
        for offer in offers:
            reason = None if self.trusted is None else distrust(offer.manifest, self.trusted)
            if reason is None:
                kept.append(offer)
            else:
                found.turn_down(offer, [reason])
        return kept

    def fetch(self, chosen: Iterable[Offer], options: Options, found: Fitted) -> list[Entry]:
        """Of each call the best artifact that can be had, in the store now.

        Where the Hub hasn't got a file, or can't be reached, the next best is tried, with a
        WARNING. What was altered is no such case: nobody chooses another by damaging one. `found`
        has what was tried in vain.
        """
        made = (self._first(ranked, options, found) for ranked in by_call(chosen))
        return [entry for entry in made if entry is not None]

    def _first(self, ranked: Sequence[Offer], options: Options, found: Fitted) -> Entry | None:
        for offer, next_ in zip_longest(ranked, ranked[1:]):
            item = offer.manifest
            try:
                place = self.hub, options.store, self.repository, self.commit
                return fetch(*place, item, exact=self.exact)
            except AotbuildError as e:
                found.turn_down(offer, [str(e)])
                if next_ is None or isinstance(e, ArtifactError | StoreError):
                    return None
                log.warning(
                    "%s %s can't be fetched, and %s is tried instead: %s",
                    item.component,
                    item.key[:12],
                    next_.manifest.key[:12],
                    e,
                )
        return None


def open_remote(
    name: str, revision: str | None, *, allow_unpinned: bool, trusted: frozenset[str] | None
) -> Remote:
    """The collection `name` at a commit.

    Raises:
        SourceError: no such collection, or `revision` isn't a commit and `allow_unpinned` not set.
        HubError: the Hub can't be reached.
        ManifestError: its index can't be used.
    """
    hub = Hub()
    commit = pinned(hub, name, revision, allow_unpinned=allow_unpinned)
    index = fetch_index(hub, name, commit)
    return Remote(
        repository=name,
        commit=commit,
        items=index.items,
        trusted=trusted,
        exact=trusted is not None,
        hub=hub,
    )


def open_locked(lock: Lock, trusted: frozenset[str] | None) -> Remote:
    """What a lockfile names; the Hub is asked only for what the store hasn't got."""
    return Remote(
        repository=lock.repository,
        commit=lock.revision,
        items=lock.items,
        trusted=trusted,
        exact=True,
        hub=Hub(),
    )


def fetched(
    remote: Remote,
    pipeline: object,
    components: Sequence[str] | None,
    options: Options,
    device_for: Callable[[object, nn.Module], torch.device],
) -> tuple[list[Entry], list[Rejection]]:
    """The artifacts that serve `pipeline`, in the store now; and the others' reasons.

    Raises:
        LoadError: a component is swapped already.
        UsageError: `components` names what the pipeline hasn't got.
    """
    labels = {item.component for item in remote.items}
    found, entries = Fitted(), []
    for name, units in wanted_units(pipeline, labels, components).items():
        module: nn.Module = getattr(pipeline, name)
        mine = [o for o in remote.offers if o.manifest.component in units]
        check_free(module, name, {o.manifest.method for o in mine})
        offers = remote.vouched(mine, found)
        device = device_for(pipeline, module)
        whole, blocks = by_scope(offers, options, found)
        chosen = _serving(name, module, whole, device, options, found)
        if blocks and not chosen:
            kinds = judge_blocks(name, module, blocks, device, options, found)
            chosen = list({o.manifest.key: o for k in kinds for o in k.chosen}.values())
        else:
            found.turn_down_all(blocks, served_whole(name))
        entries += remote.fetch(chosen, options, found)
    return entries, found.rejections


def _serving(
    name: str,
    module: nn.Module,
    offers: list[Offer],
    device: torch.device,
    options: Options,
    found: Fitted,
) -> list[Offer]:
    """Those of `offers` that serve the whole component, best first."""
    if not offers:
        return []
    if is_hooked(module):
        found.turn_down_all(offers, f"{name} has a hook or a replaced method; see `aotbuild.load`.")
        return []
    weightless = is_weightless(module)
    if weightless:
        offers = packed_entries(name, offers, options, found)
    facts = ModuleFacts(
        identity=identify(module),
        state=module_state(module),
        precision=precision_of(module),
        device=device.type,
    )
    machine = probe.this_machine(str(device))
    chosen = judged(offers, facts_from(facts), machine, options, found)
    return trusted(chosen, machine, options, found) if weightless else chosen


def fetched_packed(
    remote: Remote,
    label: str,
    facts: Facts,
    device: torch.device,
    options: Options,
    found: Fitted,
) -> list[Entry]:
    """The packed artifacts of the unit or component `label` that run on `device`, in the store."""
    mine = [o for o in remote.offers if is_unit_of(o.manifest.component, label)]
    offers = remote.vouched(mine, found)
    packed = packed_entries(label.partition(".")[0], offers, options, found)
    machine = probe.this_machine(str(device))
    chosen = judged(packed, facts, machine, options, found)
    return remote.fetch(trusted(chosen, machine, options, found), options, found)


def by_call(offers: Iterable[Offer]) -> list[list[Offer]]:
    """Those that serve the same calls together, in their order, without weights before with."""
    found: dict[str, list[Offer]] = {}
    for offer in sorted(offers, key=lambda o: o.manifest.packed is not None):
        item = offer.manifest
        call: list[Any] = [item.component, item.method, item.signature.calls()]
        if item.scope != "full":
            call += [item.module.config_sha256, item.state]
        found.setdefault(digest([*call, item.covers.quantization]), []).append(offer)
    return list(found.values())
