"""Artifacts put together: code mapped once, a container of it for each module that it is bound to.

Whether they fit was judged before, by their manifests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.errors import AotbuildError
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.code import Opened, open_code
from aotbuild.loaders.component import Component
from aotbuild.loaders.dispatch import Dispatcher
from aotbuild.loaders.loaded import Rejection
from aotbuild.loaders.options import Options
from aotbuild.loaders.packed import map_constants
from aotbuild.loaders.running import Code
from aotbuild.loaders.source import rejection
from aotbuild.loaders.swap import Swap
from aotbuild.loaders.tally import Tally
from aotbuild.loaders.unit import Unit
from aotbuild.target import Target


@dataclass(frozen=True, slots=True)
class _Code:
    """What gives each module its own container, and whether a record vouches for it here."""

    bound: Opened
    verified: bool


class Assembler:
    """Makes the artifacts of one component; opens each entry, and each packed file, once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._codes: dict[str, _Code] = {}
        self._packed: dict[str, dict[str, Tensor]] = {}

    def make(self, entry: Entry, component: Component, machine: Target) -> Artifact | Rejection:
        """The artifact mapped and bound, or why it can't be."""
        manifest, options = entry.manifest, self._options
        runner: Code | None = None
        try:
            started = time.perf_counter()
            code = self._open(entry, component, machine)
            runner = code.bound(component)
            opened = time.perf_counter()
            constants = self._constants(entry, component)
            weights_s = time.perf_counter() - opened
            artifact = Artifact(
                manifest,
                component,
                runner,
                component.device,
                verified=code.verified,
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

    def _open(self, entry: Entry, component: Component, machine: Target) -> _Code:
        manifest = entry.manifest
        if manifest.key not in self._codes:
            bound = open_code(entry, component.device, self._options)
            records = self._options.store.verifications(entry)
            verified = match.verified(manifest, machine, records=records)
            self._codes[manifest.key] = _Code(bound, verified)
        return self._codes[manifest.key]

    def _constants(self, entry: Entry, component: Component) -> dict[str, Tensor] | None:
        """The packed constants, for a component without weights."""
        packed = entry.manifest.packed
        if packed is None or not component.weightless:
            return None
        file = packed.file.sha256
        if file not in self._packed:
            device: torch.device = component.device
            self._packed[file] = map_constants(entry.folder, entry.manifest, device)
        return self._packed[file]


def swap_in(
    component: Component, label: str, artifacts: list[Artifact], tally: Tally, *, strict: bool
) -> Unit:
    """Have `artifacts`, best first, serve their method of the component's module."""
    method = artifacts[0].manifest.method
    dispatcher = Dispatcher(component, label, method, artifacts, strict=strict, tally=tally)
    swap = Swap(component.module, method, dispatcher)
    return Unit(name=label, component=component, dispatcher=dispatcher, swap=swap)
