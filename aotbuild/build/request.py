"""What a build is asked for, will make, has made, and says meanwhile; as data, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aotbuild.cache.backend import AOT
from aotbuild.cache.signature import Signature
from aotbuild.cache.units import is_unit_of
from aotbuild.errors import UsageError
from aotbuild.recipe import Recipe

STAGES = ("rehearse", "export", "compile", "verify")
"""The stages whose seconds a built artifact reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One `aotbuild build`.

    Attributes:
        recipe: with what the command line changed.
        gpu: "a100", "sm_80", "auto", "cpu", or a CPU level.
        resolutions: "WIDTHxHEIGHT" in pixels, an artifact each.
        batches: images per call, an artifact each.
        variants: the recipe's calls to build for; () for all that aren't optional.
        dynamic: (smallest, largest) resolution of one artifact for the whole range, in place of
            `resolutions`.
        scope: "full", or "regional": the repeated blocks of each component that has some.
        components: units or components to build, "vae.decode" or "vae"; () for all.
        backend: "aot", or "inductor-cache" for bundles of torch.compile's caches.
        checkpoint: a diffusers folder or Hub id whose configs decide the architecture.
        pack_weights: put the prepared weights of `checkpoint`, a folder, beside the code.
        store: the store's root.
        verify: compare with eager after building, where this machine can run the target.
        tune: measure on the GPU that is here, and keep the choices in the tuning table.
        recipe_path: the recipe's own TOML file, beside which its tuning tables lie; None for one
            that ships, whose tables are the store's.
    """

    recipe: Recipe
    gpu: str
    resolutions: tuple[str, ...]
    batches: tuple[int, ...]
    store: Path
    variants: tuple[str, ...] = ()
    dynamic: tuple[str, str] | None = None
    scope: str = "full"
    components: tuple[str, ...] = ()
    backend: str = AOT
    checkpoint: str | None = None
    pack_weights: bool = False
    verify: bool = True
    tune: bool = False
    recipe_path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One artifact that a request asks for.

    Attributes:
        component: the unit, "unet" or "vae.decode".
        key: 64 hex digits.
        path: its folder in the store, there or to be.
        signature: the calls it will serve.
        cached: whether the store has it.
        resolution: the call it was rehearsed with, or the range.
        batch: images of that call.
        variant: the recipe's name for the call.
        job: what the worker needs, as JSON.
        rehearse_s: what the rehearsal took.
        blocks: paths of the repeated blocks that it serves; none for a whole component.
        layers: the linear layers, where some are to be quantized: path, widths, and the reason why
            one isn't.
    """

    component: str
    key: str
    path: Path
    signature: Signature
    cached: bool
    resolution: str
    batch: int
    variant: str
    job: dict[str, Any]
    rehearse_s: float
    blocks: tuple[str, ...] = ()
    layers: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The artifact object of `plan --json`."""
        return {
            "key": self.key,
            "component": self.component,
            "path": str(self.path),
            "signature": self.signature.to_json(),
            "cached": self.cached,
            "resolution": self.resolution,
            "batch": self.batch,
            "variant": self.variant,
            "scope": "regional" if self.blocks else "full",
            "blocks": list(self.blocks),
            "layers": list(self.layers),
        }


def check_named(recipe: Recipe, components: Sequence[str]) -> None:
    """Refuse with a UsageError names that are of no component of `recipe`, before any work."""
    for name in components:
        if name.partition(".")[0] not in recipe.components:
            known = ", ".join(recipe.components)
            raise UsageError(f"--component {name}: recipe {recipe.name} has {known}.")


def chosen(planned: Iterable[Planned], components: Sequence[str]) -> list[Planned]:
    """Those of `components`, "vae" or "vae.decode"; all where none are named.

    Raises:
        UsageError: the pipeline calls none by such a name.
    """
    every = list(planned)
    found = [
        p for p in every if not components or any(is_unit_of(p.component, c) for c in components)
    ]
    for name in components:
        if not any(is_unit_of(p.component, name) for p in found):
            units = ", ".join(dict.fromkeys(p.component for p in every))
            raise UsageError(f"--component {name}: this recipe's pipeline calls {units}.")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One artifact that is in the store now.

    Attributes:
        component: the unit. key: 64 hex digits. path: its folder.
        signature: the calls it serves.
        bytes: size of `package.pt2`, and of the packed constants where there are any.
        cached: it was there already; nothing was compiled.
        verified: a record says that it computes what eager does.
        seconds: by stage of `STAGES`; None for a stage that didn't run.
        peak_bytes: most resident memory of the process that exported and compiled, and of the
            host compiler below it, whichever was more; None where nothing was compiled.
    """

    component: str
    key: str
    path: Path
    signature: Signature
    bytes: int
    cached: bool
    verified: bool
    seconds: dict[str, float | None] = field(default_factory=dict)
    peak_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The artifact object of `build --json`."""
        return {
            "key": self.key,
            "component": self.component,
            "path": str(self.path),
            "signature": self.signature.to_json(),
            "bytes": self.bytes,
            "cached": self.cached,
            "verified": self.verified,
            "seconds": {stage: self.seconds.get(stage) for stage in STAGES},
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a build says while it runs.

    Attributes:
        stage: "rehearse", "export", "compile", "package", "verify", "store".
        component: the unit it is about.
        seconds: what the stage took, when it is over; None when it begins.
        message: for people.
    """

    stage: str
    component: str
    seconds: float | None = None
    message: str = ""
