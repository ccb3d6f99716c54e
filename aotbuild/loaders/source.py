"""What a source holds and what is wanted of it. Whether any of it fits is `load`'s to find out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from aotbuild.cache import match
from aotbuild.cache.artifact import Broken, Entry, glimpse
from aotbuild.cache.item import Item
from aotbuild.cache.manifest import ModuleIdentity
from aotbuild.cache.store import Store
from aotbuild.cache.units import is_unit_of
from aotbuild.errors import SourceError, UsageError
from aotbuild.loaders.loaded import Rejection
from aotbuild.loaders.paths import is_local, local_path


@dataclass(frozen=True, slots=True)
class Offer:
    """An artifact that isn't here yet, by what a collection's index or a lockfile says of it."""

    manifest: Item


def local_source(source: str | PathLike[str], revision: str | None) -> Path | None:
    """The folder or lockfile that `source` names; None where it names a repository on the Hub.

    Raises:
        SourceError: it isn't there, or a revision was named, which only a repository has.
    """
    if isinstance(source, str) and source and not is_local(source):
        return None
    path = local_path("source", source, error=SourceError)
    if revision is not None:
        raise SourceError(f"revision={revision!r} is for Hub repositories; {source} is local.")
    if not path.exists():
        raise SourceError(
            f"There is no folder {path}. `aotbuild build` makes a store; a lockfile comes from "
            "`aotbuild lock`."
        )
    return path


def records_of(candidate: Entry | Offer, store: Store) -> tuple[dict[str, Any], ...]:
    """The verification records of an artifact, wherever it is."""
    if isinstance(candidate, Offer):
        return candidate.manifest.verification
    return store.verifications(candidate)


class Listing(NamedTuple):
    """What a folder has for a pipeline.

    Attributes:
        entries: that may fit. rejections: why the others of the wanted units don't.
        others: units of whole components that it has for another architecture.
    """

    entries: list[Entry]
    rejections: list[Rejection]
    others: set[str]


def listed(
    folder: Path,
    device_of: Callable[[str], str | None],
    identity_of: Callable[[str], ModuleIdentity] | None = None,
) -> Listing:
    """The artifacts below `folder`, and those that can't be used.

    What isn't asked for isn't read, nor what is for the other kind of device where a unit has some
    for its own; of another architecture only that is read. So a store of hundreds is as quick to
    load from as a small one.

    Args:
        device_of: the kind of device that a unit is wanted on, "cpu"; None where it isn't wanted.
        identity_of: what a unit's module is; None where any will do.

    Raises:
        SourceError: there are none at all.
    """
    store = Store(folder)
    places = store.folders()
    if not places:
        raise SourceError(
            f"{folder} holds no artifacts; `aotbuild build RECIPE --store {folder}` makes some."
        )
    devices = {unit: device_of(unit) for unit in map(_unit, places)}
    wanted = [p for p in places if devices[_unit(p)] is not None]
    near = {p for p in wanted if _is_for(p) == devices[_unit(p)]}
    units = {_unit(p) for p in near}
    chosen = [p for p in wanted if p in near or _unit(p) not in units]
    others = [] if identity_of is None else list(_of_others(chosen, identity_of))
    strangers = {place for place, _ in others}
    found = list(store.entries(p for p in chosen if p not in strangers))
    rejections = [_other(p, reason) for p, reason in others]
    rejections += [_turned_down(b.folder, b.word, b.reason) for b in found if isinstance(b, Broken)]
    for place in sorted({*wanted} - {*chosen}):
        reason = (
            f"It is built for {place.parent.name}, and the module is on another kind of device."
        )
        rejections.append(_turned_down(place, place.parent.name, reason))
    entries = [e for e in found if isinstance(e, Entry)]
    return Listing(entries, rejections, {_unit(place) for place in strangers})


def _of_others(
    places: Sequence[Path], identity_of: Callable[[str], ModuleIdentity]
) -> Iterator[tuple[Path, str]]:
    """Those of `places` that are of another architecture than the module, and why.

    A unit's only one isn't looked at: reading it whole says no less, and the rest costs as much.
    """
    identities: dict[str, ModuleIdentity] = {}
    several = Counter(map(_unit, places))
    for place in (p for p in places if several[_unit(p)] > 1):
        built, unit = glimpse(place), _unit(place)
        if built is None:
            continue
        if unit not in identities:
            identities[unit] = identity_of(unit)
        for reason in match.architecture_reasons(built, identities[unit]):
            yield place, reason


def _is_for(place: Path) -> str:
    """The kind of device, by its architecture's name alone; `match` judges what is read."""
    return "cuda" if place.parent.name.startswith("sm_") else "cpu"


def _unit(place: Path) -> str:
    return place.parent.parent.name


def _turned_down(place: Path, slug: str, reason: str) -> Rejection:
    return Rejection(unit=_unit(place), key=place.name, slug=slug, reasons=(reason,))


def _other(place: Path, reason: str) -> Rejection:
    """As `rejection` words it, by the folder's name alone."""
    slug, _, key = place.name.rpartition("-")
    return Rejection(unit=_unit(place), key=key, slug=slug, reasons=(reason,))


def wanted_units(
    pipeline: object, labels: set[str], components: Sequence[str] | None
) -> dict[str, set[str]]:
    """Component name -> the unit labels that are wanted of it.

    Raises:
        UsageError: the pipeline has no module of a name in `components`.
    """
    modules = {
        name: isinstance(getattr(pipeline, name, None), nn.Module)
        for name in {w.partition(".")[0] for w in (*labels, *(components or ()))}
    }
    asked: Iterable[str] = components if components is not None else sorted(labels)
    wanted: dict[str, set[str]] = {}
    for label in asked:
        name = label.partition(".")[0]
        if not modules[name]:
            if components is not None:
                raise UsageError(f"components: the pipeline has no module {name!r}.")
            continue
        exact = {x for x in labels if is_unit_of(x, label)}
        wanted.setdefault(name, set()).update(exact or {label})
    return wanted


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a source.

    Attributes:
        labels: component -> labels of its units. scopes: label -> scope, of what there is.
    """

    labels: dict[str, set[str]]
    scopes: dict[str, str]

    def missing(self, served: set[str]) -> set[str]:
        """The labels without a unit; of a component served in one scope, those of that scope."""
        found: set[str] = set()
        for labels in self.labels.values():
            scopes = {self.scopes.get(label) for label in labels & served}
            found |= {x for x in labels if not scopes or self.scopes.get(x) in scopes} - served
        return found


def rejection(entry: Entry | Offer, reasons: Iterable[str]) -> Rejection:
    """`entry`, turned down for `reasons`."""
    manifest = entry.manifest
    return Rejection(
        unit=manifest.component,
        key=manifest.key[:12],
        slug=manifest.signature.slug,
        reasons=tuple(reasons),
    )
