"""Artifacts matched to a pipeline's components, loaded, bound and swapped in.

Whether an artifact fits is `cache.match`'s to judge, whether a call does is `dispatch`'s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from torch import nn

from aotbuild import probe
from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.errors import AotbuildError, NoArtifactError, ReleasedError, UsageError
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.component import Component, device_of, precision_of
from aotbuild.loaders.dispatch import Dispatcher
from aotbuild.loaders.loaded import Loaded, Rejection, Unit
from aotbuild.loaders.runner import Runner, open_library
from aotbuild.loaders.source import listed, local_source, rejection, wanted_units
from aotbuild.loaders.state import current_backend, identify, is_hooked
from aotbuild.loaders.swap import Swap, check_free
from aotbuild.target import Rejected, Target

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    store: Store
    self_check: bool
    require_verified: bool
    num_runners: int
    trial: bool = False
    frees: bool = False


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
) -> Loaded:
    """Swap compiled artifacts into `pipeline`, for every component that one fits.

    Args:
        pipeline: any object whose attributes are the components; a diffusers pipeline is one.
        source: a folder laid out like a store: a `Path`, or a string that begins with "/", "./",
            "../" or "~".
        revision: the commit, for sources on the Hub.
        components: names of components ("vae") or of units ("vae.decode"); None: whatever `source`
            has artifacts for.
        fallback: "eager" runs what isn't covered eagerly; "error" raises, here and at the call, and
            frees the weights that only int8 constants are made of: then nothing can be restored.
        store: where libraries are extracted; by default `$AOTBUILD_STORE`, else ~/.cache/aotbuild.
        self_check: let an artifact that wasn't verified on this architecture compare its first call
            with eager before it serves.
        require_verified: turn such artifacts down instead.
        num_runners: how many calls of one artifact may run at once.

    Returns:
        What was loaded, with `report`, `metrics`, `refresh` and `restore`.

    Raises:
        SourceError: `source` is no such folder, or holds no artifacts.
        NoArtifactError: under `fallback="error"`, with every rejection, where a unit got none.
        LoadError: a component is swapped already.
    """
    if fallback not in ("eager", "error"):
        raise UsageError(f"fallback={fallback!r}: write 'eager' or 'error'.")
    if num_runners < 1:
        raise UsageError(f"num_runners={num_runners}: at least 1 is needed.")
    options = _Options(
        store=Store(Path(store) if store is not None else probe.default_store()),
        self_check=self_check,
        require_verified=require_verified,
        num_runners=num_runners,
        frees=fallback == "error",
    )
    return _load(pipeline, local_source(source, revision), components, fallback, options)


def load_on_trial(pipeline: object, store: Path, unit: str) -> Loaded:
    """`load` for verification: one unit or an error, and no record need vouch for this torch yet.

    Raises:
        NoArtifactError: with every rejection.
    """
    options = _Options(
        store=Store(store), self_check=False, require_verified=False, num_runners=1, trial=True
    )
    return _load(pipeline, store, [unit], "error", options)


def _load(
    pipeline: object,
    folder: Path,
    components: Sequence[str] | None,
    fallback: str,
    options: _Options,
) -> Loaded:
    entries, rejections = listed(folder)
    names = wanted_units(pipeline, {e.manifest.component for e in entries}, components)
    units: list[Unit] = []
    try:
        for name, labels in names.items():
            mine = [e for e in entries if e.manifest.component in labels]
            found, turned_down = _load_component(pipeline, name, mine, options, fallback)
            units += found
            rejections += turned_down
        loaded = Loaded(units, rejections, str(folder))
        _check_complete(names, units, rejections, fallback, folder)
        if options.frees:
            loaded.free()
    except BaseException:
        with suppress(ReleasedError):  # too late: they stay swapped, and raise
            Loaded(units, [], "").restore()
        raise
    return loaded


def _load_component(
    pipeline: object, name: str, entries: list[Entry], options: _Options, fallback: str
) -> tuple[list[Unit], list[Rejection]]:
    module: nn.Module = getattr(pipeline, name)
    for method in {e.manifest.method for e in entries}:
        check_free(module, name, method)
    if is_hooked(module):
        reason = f"{name} has a hook or a replaced method (offloading?) that a swap would bypass."
        return [], [rejection(e, [reason]) for e in entries]
    if not entries:
        return [], []
    component = Component(name, module)
    device = device_of(module)
    machine = probe.this_machine(str(device))
    facts = match.ModuleFacts(
        identity=identify(module),
        state=component.state,
        precision=precision_of(module),
        device=device.type,
    )
    chosen, rejections = _judged(entries, facts, machine, options)
    by_label: dict[str, list[Artifact]] = {}
    for entry in chosen:
        made = _make(entry, component, machine, options)
        if isinstance(made, Rejection):
            rejections.append(made)
        else:
            by_label.setdefault(entry.manifest.component, []).append(made)
    units = [_swap(component, n, a, fallback) for n, a in sorted(by_label.items())]
    component.settle()
    return units, rejections


def _judged(
    entries: list[Entry], facts: match.ModuleFacts, machine: Target, options: _Options
) -> tuple[list[Entry], list[Rejection]]:
    """The entries that fit, best first, and the others."""
    fitting, rejections = [], []
    for entry in entries:
        records = options.store.verifications(entry)
        here = replace(facts, state=_state_for(entry, facts.state))
        verdict = match.judge(entry.manifest, here, machine, records=records, trial=options.trial)
        if isinstance(verdict, Rejected):
            # Versions only word a refusal, and reading them takes as long as binding a UNet.
            here = replace(here, versions=probe.versions())
            verdict = match.judge(
                entry.manifest, here, machine, records=records, trial=options.trial
            )
        if isinstance(verdict, Rejected):
            rejections.append(rejection(entry, verdict.reasons))
        elif options.require_verified and not match.verified(
            entry.manifest, machine, records=records
        ):
            key = entry.manifest.key[:12]
            rejections.append(
                rejection(
                    entry,
                    [
                        f"No record says that it was verified on {machine.arch}; "
                        f"`aotbuild verify {key}` adds one."
                    ],
                )
            )
        else:
            fitting.append((match.rank(entry.manifest, machine, records=records), entry))
    return [e for _, e in sorted(fitting, key=lambda pair: pair[0])], rejections


def _state_for(entry: Entry, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """`state` with the backend's switches, where the artifact recorded them."""
    expected = entry.manifest.state.get("backend")
    return state if expected is None else {**state, "backend": current_backend(expected)}


def _make(
    entry: Entry, component: Component, machine: Target, options: _Options
) -> Artifact | Rejection:
    """The artifact mapped and bound, or why it can't be."""
    manifest = entry.manifest
    device = device_of(component.module)
    runner: Runner | None = None
    try:
        started = time.perf_counter()
        descriptor = options.store.open_library(entry)
        library = open_library(manifest.library.sha256, descriptor)
        runner = Runner(library, device, options.num_runners)
        records = options.store.verifications(entry)
        artifact = Artifact(
            manifest,
            component,
            runner,
            device,
            verified=match.verified(manifest, machine, records=records),
            self_check=options.self_check,
        )
        artifact.load_s = time.perf_counter() - started
        # What frees weights is bound once every component is known to be served.
        later = options.frees and artifact.quantized
        unfit = artifact.binding.judge() if later else artifact.bind()
    except AotbuildError as e:
        if runner is not None:
            runner.close()
        return rejection(entry, [str(e)])
    if unfit is not None and not artifact.binding.only_cast:
        artifact.binding.release()
        return rejection(entry, [f"The module's weights don't fit: {unfit}."])
    return artifact


def _swap(component: Component, label: str, artifacts: list[Artifact], fallback: str) -> Unit:
    method = artifacts[0].manifest.method
    dispatcher = Dispatcher(component, label, method, artifacts, strict=fallback == "error")
    swap = Swap(component.module, method, dispatcher)
    return Unit(name=label, component=component, dispatcher=dispatcher, swap=swap)


def _check_complete(
    names: dict[str, set[str]],
    units: list[Unit],
    rejections: list[Rejection],
    fallback: str,
    folder: Path,
) -> None:
    """Say which units got nothing; raise where the user asked for that."""
    served = {u.name for u in units}
    missing = sorted({label for labels in names.values() for label in labels} - served)
    if names and not missing:
        return
    what = ", ".join(missing) or "any component of this pipeline"
    listed = [f"  {r.unit} {r}" for r in rejections if not missing or r.unit in missing]
    why = (
        "\n".join(listed) or f"  {folder} has no artifact for it; `aotbuild list` shows what it has"
    )
    message = f"No artifact serves {what}:\n{why}"
    if fallback == "error":
        raise NoArtifactError(message)
    _log.warning("%s", message)
