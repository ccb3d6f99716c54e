"""Artifacts matched to a pipeline's components, loaded, bound and swapped in.

Whether an artifact fits is `cache.match`'s to judge, whether a call does is `dispatch`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.cache.units import is_unit_of
from aotbuild.errors import NoArtifactError, ReleasedError, UsageError
from aotbuild.loaders.component import device_of, is_weightless
from aotbuild.loaders.fitting import fit_module
from aotbuild.loaders.loaded import Loaded, Rejection
from aotbuild.loaders.opening import open_source
from aotbuild.loaders.options import Options, named_store
from aotbuild.loaders.source import Wanted, listed, wanted_units
from aotbuild.loaders.state import identify
from aotbuild.loaders.unit import Unit

if TYPE_CHECKING:
    from aotbuild.loaders.remote import Remote

_log = logging.getLogger(__name__)


def load(
    pipeline: object,
    source: str | PathLike[str],
    *,
    revision: str | None = None,
    components: Sequence[str] | None = None,
    fallback: Literal["eager", "error"] = "eager",
    store: str | PathLike[str] | None = None,
    self_check: bool = True,
    require_verified: bool = False,
    num_runners: int = 1,
    checkpoint: str | PathLike[str] | None = None,
    quant: Literal["none", "int8dq"] | None = None,
    allow_unpinned: bool = False,
    trusted_keys: Sequence[str | PathLike[str]] | None = None,
    owners: Sequence[str] | None = None,
    scope: Literal["full", "regional"] | None = None,
    allow_jit_cache: bool = False,
) -> Loaded:
    """Swap compiled artifacts into `pipeline`, for every component that one fits.

    Where none of a whole component does, those of its repeated blocks are bound to every block that
    they fit, and what is outside of the blocks runs as stock code.

    A component whose parameters are all on the meta device is served by artifacts with packed
    constants alone, and has no eager to fall back to.

    Args:
        pipeline: any object whose attributes are the components; a diffusers pipeline is one.
        source: a folder laid out like a store, or a lockfile: a `Path`, or a string that begins
            with "/", "./", "../" or "~". Anything else is a collection on the Hub, "ORG/NAME", of
            which only what serves this pipeline here is downloaded, into the store.
        revision: the commit, for sources on the Hub.
        components: names of components ("vae") or of units ("vae.decode"), or one such name; None:
            whatever `source` has artifacts for.
        fallback: "eager" runs what isn't covered eagerly; "error" raises, here and at the call, and
            frees the weights that only int8 constants are made of: then nothing can be restored.
        store: where libraries are extracted, and what comes from the Hub is kept; by default
            `$AOTBUILD_STORE`, else ~/.cache/aotbuild.
        self_check: let an artifact that wasn't verified on this architecture compare its first call
            with eager before it serves.
        require_verified: turn such artifacts down instead.
        num_runners: how many calls of one artifact may run at once.
        checkpoint: whose packed constants they must be: "ORGANISATION/NAME@COMMIT", or a diffusers
            folder, whose weight files are then hashed. None takes them as they are.
        quant: "none" or "int8dq", as `build --quant` has it: of components that int8 is meant for
            take such artifacts alone. None: whatever fits; `report` says which serve.
        allow_unpinned: let `revision` be a branch, or absent, and take what it stands for now.
        trusted_keys: of a collection or lockfile take only what one of these Ed25519 keys signed:
            each 64 hex digits, or the path of a public key's PEM file.
        owners: organisations and users whose collections may be loaded; None: those of
            `$AOTBUILD_ALLOWED_OWNERS`, or all.
        scope: "full" for artifacts of whole components alone; "regional" for those of repeated
            blocks, where `source` has some of a component.
        allow_jit_cache: take JIT-cache bundles too, for calls that nothing compiled ahead of time
            serves. They hold pickles, which run code while they are read: whoever made or sent them
            is trusted entirely. Their files are added to this process's Inductor and Triton caches.

    Returns:
        What was loaded, with `report`, `metrics`, `refresh` and `restore`.

    Raises:
        SourceError: `source` is no such folder, holds no artifacts, or isn't pinned to a commit.
        HubError: the Hub can't be reached.
        NoArtifactError: with every rejection, where a unit got none, or not all of its blocks did,
            under `fallback="error"`; and where a component without weights got none.
        LoadError: a component is swapped already, or packed constants are of several checkpoints.
    """
    if fallback not in ("eager", "error"):
        raise UsageError(f"fallback={fallback!r}: write 'eager' or 'error'.")
    if scope not in (None, "full", "regional"):
        raise UsageError(f"scope={scope!r}: write 'full' or 'regional', or leave it out.")
    options = Options(
        store=named_store(store),
        self_check=self_check,
        require_verified=require_verified,
        num_runners=num_runners,
        strict=fallback == "error",
        checkpoint=checkpoint,
        quant=quant,
        frees=fallback == "error",
        scope=scope,
        bundles=allow_jit_cache,
    )
    components = (components,) if isinstance(components, str) else components
    opened = open_source(
        source, revision, allow_unpinned=allow_unpinned, keys=trusted_keys, owners=owners
    )
    return _load(pipeline, opened, components, options)


def load_on_trial(pipeline: object, store: Path, key: str) -> Loaded:
    """`load` for verification: one artifact or an error; no record need vouch for this torch yet.

    Raises:
        NoArtifactError: with every reason.
    """
    options = Options(
        store=Store(store),
        self_check=False,
        require_verified=False,
        num_runners=1,
        strict=True,
        trial=True,
        bundles=True,
    )
    entry = Store(store).find(key)
    label, scope = entry.manifest.component, entry.manifest.scope
    wanted = Wanted(wanted_units(pipeline, {label}, [label]), {label: scope})
    return _fit(pipeline, store, [entry], [], wanted, options)


def _load(
    pipeline: object, source: Path | Remote, components: Sequence[str] | None, options: Options
) -> Loaded:
    if not isinstance(source, Path):
        from aotbuild.loaders.remote import fetched

        entries, rejections = fetched(source, pipeline, components, options, _device)
        scopes = {item.component: item.scope for item in source.items}
    else:
        entries, rejections, others = listed(
            source,
            lambda unit: _wanted_on(pipeline, unit, components),
            lambda unit: identify(getattr(pipeline, unit.partition(".")[0])),
        )
        scopes = dict.fromkeys(others, "full")
        scopes |= {e.manifest.component: e.manifest.scope for e in entries}
    wanted = Wanted(wanted_units(pipeline, set(scopes), components), scopes)
    if not wanted.labels and isinstance(pipeline, nn.Module):
        raise UsageError(
            f"{type(pipeline).__name__} is a module, and its pipeline is what is loaded into: pass "
            "that, or types.SimpleNamespace(NAME=module), NAME being the component's: unet."
        )
    return _fit(pipeline, source, entries, rejections, wanted, options)


def _fit(
    pipeline: object,
    source: Path | Remote,
    entries: Sequence[Entry],
    rejections: list[Rejection],
    wanted: Wanted,
    options: Options,
) -> Loaded:
    units: list[Unit] = []
    partial: set[str] = set()
    try:
        for name, labels in wanted.labels.items():
            module: nn.Module = getattr(pipeline, name)
            mine = [e for e in entries if e.manifest.component in labels]
            fitted = fit_module(name, module, mine, _device(pipeline, module), options)
            units += fitted.units
            rejections += fitted.rejections
            partial |= fitted.partial
        loaded = Loaded(units, rejections, str(source))
        hollow = {n for n in wanted.labels if is_weightless(getattr(pipeline, n))}
        strict = options.strict or bool(hollow - {u.component.name for u in units})
        missing = wanted.missing({u.name for u in units})
        _check_complete(missing, partial, bool(wanted.labels), rejections, source, strict=strict)
        if options.frees:
            loaded.free()
    except BaseException:
        with suppress(ReleasedError):  # too late: they stay swapped, and raise
            Loaded(units, [], "").restore()
        raise
    return loaded


def _device(pipeline: object, module: nn.Module) -> torch.device:
    """Where `module` runs; one without weights, where the first other tensor of `pipeline` is."""
    if not is_weightless(module):
        return device_of(module)
    table: dict[str, Any] = {**vars(pipeline), "": module}
    modules = [m for m in table.values() if isinstance(m, nn.Module)]
    devices = (t.device for m in modules for of in (m.parameters(), m.buffers()) for t in of)
    return next((d for d in devices if d.type != "meta"), torch.device("cpu"))


def _wanted_on(pipeline: object, unit: str, components: Sequence[str] | None) -> str | None:
    """The kind of device that a unit runs on; None for one that isn't there or asked for."""
    module = getattr(pipeline, unit.partition(".")[0], None)
    asked = components is None or any(is_unit_of(unit, c) for c in components)
    return _device(pipeline, module).type if asked and isinstance(module, nn.Module) else None


def _check_complete(
    missing: set[str],
    partial: set[str],
    known: bool,
    rejections: list[Rejection],
    source: Path | Remote,
    *,
    strict: bool,
) -> None:
    """Say which units, or which of their blocks, got nothing; raise where the user asked for that.

    Args:
        known: whether `source` has anything for this pipeline.
    """
    labels = sorted(missing | partial)
    if known and not labels:
        return
    what = ", ".join(label if label in missing else f"all blocks of {label}" for label in labels)
    listed = [f"  {r.unit} {r}" for r in rejections if not labels or r.unit in labels]
    why = (
        "\n".join(listed) or f"  {source} has no artifact for it; `aotbuild list` shows what it has"
    )
    message = f"No artifact serves {what or 'any component of this pipeline'}:\n{why}"
    if strict:
        raise NoArtifactError(message)
    _log.warning("%s", message)
