"""`load_component`: packed artifacts that stand in for a component which no module was built for.

Which artifacts serve is decided as for a module; here is what stands in the module's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.cache.files import Parameter
from aotbuild.cache.units import is_unit_of
from aotbuild.errors import NoArtifactError, UsageError
from aotbuild.loaders.choosing import Fitted, packed_entries, state_for
from aotbuild.loaders.component import Component, named_device
from aotbuild.loaders.fitting import fit
from aotbuild.loaders.loaded import Loaded, Rejection
from aotbuild.loaders.opening import open_source
from aotbuild.loaders.options import Options, named_store
from aotbuild.loaders.outline import absent_method
from aotbuild.loaders.source import Offer, listed
from aotbuild.loaders.stand_in import StandIn
from aotbuild.target import Rejected, Target, Verdict

if TYPE_CHECKING:
    from aotbuild.loaders.remote import Remote


class _Component(Component):
    """One whose state nobody can change: it is what the artifacts were built in."""

    def observe(self) -> int:
        """Always the same."""
        return 0


def load_component(
    source: str | PathLike[str],
    device: str | torch.device = "cpu",
    *,
    component: str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    quant: Literal["none", "int8dq"] | None = None,
    revision: str | None = None,
    store: str | PathLike[str] | None = None,
    self_check: bool = True,
    require_verified: bool = False,
    num_runners: int = 1,
    allow_unpinned: bool = False,
    trusted_keys: Sequence[str | PathLike[str]] | None = None,
    owners: Sequence[str] | None = None,
) -> StandIn:
    """A callable in place of a component: neither its module is built nor its weights are read.

    Calls are guarded as `load` guards them, and answers have the form that was built for; what no
    artifact covers raises SignatureMismatch.

    Args:
        source: as `load` takes it, with artifacts of `build --pack-weights`.
        device: where it runs, "cpu" or "cuda:0".
        component: "unet", or one unit of it, "vae.decode"; None: the only one that `source` packs.
        checkpoint: whose weights they must be: "ORGANISATION/NAME@COMMIT", or a diffusers folder,
            whose weight files are then hashed. None takes them as they are.
        quant: "none" or "int8dq": such artifacts alone. None: whatever fits.
        revision: the commit of `source`, for sources on the Hub.
        store: where libraries are extracted; by default `$AOTBUILD_STORE`, else ~/.cache/aotbuild.
        self_check: refuse an artifact that wasn't verified on this architecture, as there is no
            eager module to compare its first call with; False trusts it.
        require_verified: the same, whatever `self_check` says.
        num_runners: how many calls of one artifact may run at once.
        allow_unpinned, trusted_keys, owners: as `load` takes them.

    Returns:
        A stand-in with `config`, `dtype`, `device`, `report` and the component's own methods.

    Raises:
        SourceError: `source` is no such folder, or holds no artifacts.
        UsageError: `component` must be named, or isn't in `source`.
        NoArtifactError: with every rejection, where none serves.
        LoadError: packed constants of several checkpoints, and no `checkpoint`.
    """
    if component is not None and not isinstance(component, str):
        raise UsageError(f"component={component!r}: name it by text, 'unet' or 'vae.decode'.")
    options = Options(
        store=named_store(store),
        self_check=self_check,
        require_verified=require_verified,
        num_runners=num_runners,
        strict=True,
        checkpoint=checkpoint,
        quant=quant,
    )
    opened = open_source(
        source, revision, allow_unpinned=allow_unpinned, keys=trusted_keys, owners=owners
    )
    rejections: list[Rejection] = []
    entries: Sequence[Entry | Offer]
    if not isinstance(opened, Path):
        entries = opened.offers
    else:
        entries, rejections, _ = listed(opened, lambda unit: _wanted_on(unit, component, device))
    label = component if component is not None else _only(entries, opened, rejections)
    name = label.partition(".")[0]
    found = Fitted()
    if not isinstance(opened, Path):
        from aotbuild.loaders.remote import fetched_packed

        facts = partial(_own_facts, device=named_device(device))
        packed = fetched_packed(opened, label, facts, named_device(device), options, found)
    else:
        local = [e for e in entries if isinstance(e, Entry)]
        mine = [e for e in local if is_unit_of(e.manifest.component, label)]
        packed = packed_entries(name, mine, options, found)
    stand_in = _stand_in(name, packed, named_device(device), options, found) if packed else None
    rejections = [r for r in rejections if r.unit.startswith(name)] + found.rejections
    if stand_in is None or not found.units:
        why = "\n".join(f"  {r.unit} {r}" for r in rejections) or f"  {opened} has none for it"
        raise NoArtifactError(f"No packed artifact serves {label}:\n{why}")
    stand_in.loaded = Loaded(found.units, rejections, str(opened))
    return stand_in


def _only(
    entries: Iterable[Entry | Offer], source: Path | Remote, rejections: list[Rejection]
) -> str:
    """The one component of which there are packed artifacts."""
    found = {e.manifest.component for e in entries if e.manifest.packed is not None}
    names = sorted({label.partition(".")[0] for label in found})
    if not names and rejections:
        why = "\n".join(f"  {r.unit} {r}" for r in rejections)
        raise NoArtifactError(f"No packed artifact of {source} can be used:\n{why}")
    if len(names) != 1:
        what = f"of {', '.join(names)}; say which with component=" if names else "of nothing"
        raise UsageError(
            f"{source} has packed constants {what}."
            + ("" if names else " `aotbuild build --pack-weights` packs some.")
        )
    return names[0]


def _stand_in(
    name: str, entries: list[Entry], device: torch.device, options: Options, found: Fitted
) -> StandIn:
    """What stands in for the first of `entries` that this machine can run, and those like it."""
    machine = probe.this_machine(str(device))
    model = next(
        (e for e in entries if not isinstance(_judged(e, device, machine, options), Rejected)),
        entries[0],
    ).manifest
    methods: dict[str, tuple[Parameter, ...]] = {}
    alike = []
    for entry in sorted(entries, key=lambda e: e.manifest is not model):
        manifest = entry.manifest
        assert manifest.packed is not None
        if methods.setdefault(manifest.method, manifest.packed.parameters) != (
            manifest.packed.parameters
        ):
            found.turn_down(entry, [f"Its {manifest.method} takes other parameters than others'."])
        else:
            alike.append(entry)
    functions = {method: absent_method(method, names) for method, names in methods.items()}
    stand_in: StandIn = type(model.module.class_name, (StandIn,), functions)(model, device)
    component = _Component(name, stand_in, device)
    component.weightless = True
    component.state = {k: v for k, v in model.state.items() if k != "backend"}
    fit(component, alike, lambda e: _facts(model, e.manifest, device), options, found)
    return stand_in


def _judged(entry: Entry, device: torch.device, machine: Target, options: Options) -> Verdict:
    records = options.store.verifications(entry)
    return match.judge(entry.manifest, _own_facts(entry, device), machine, records=records)


def _wanted_on(unit: str, component: str | None, device: str | torch.device) -> str | None:
    """The kind of device that a unit is to run on; None for one that isn't asked for."""
    asked = component is None or is_unit_of(unit, component)
    return named_device(device).type if asked else None


def _own_facts(entry: Entry | Offer, device: torch.device) -> match.ModuleFacts:
    return _facts(entry.manifest, entry.manifest, device)


def _facts(
    model: match.Described, manifest: match.Described, device: torch.device
) -> match.ModuleFacts:
    """What `manifest` must fit: the module that `model` was built from."""
    state = {k: v for k, v in model.state.items() if k != "backend"}
    return match.ModuleFacts(
        identity=model.module,
        state=state_for(manifest, state),
        precision=model.precision,
        device=device.type,
    )
