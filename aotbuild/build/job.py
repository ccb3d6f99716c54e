"""One artifact to make: the job as a worker gets it, and the blueprint that it works out to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotbuild.build.calls import RecordedCall
from aotbuild.build.host import Toolchain
from aotbuild.build.quantize import Layer
from aotbuild.build.ranges import Range
from aotbuild.cache.backend import AOT
from aotbuild.cache.key import Part, key_of
from aotbuild.cache.signature import Signature
from aotbuild.recipe import ComponentRecipe, Recipe
from aotbuild.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One artifact to make, as the worker gets it.

    Attributes:
        recipe: resolved: its call has the resolution and batch.
        configs: every component's config, so that the job can be carried out again anywhere.
        variant: the call variant. unit: the unit. index: which of the unit's recorded calls.
        dynamic: (smallest, largest) resolution, or None.
        scope: "full", or "regional": the calls of repeated blocks are recorded.
        gpu: the target's architecture, or "cpu" levels by name.
        tune: measure on the GPU that is here.
        tuning: measured choices by kernel digest, of the recipe's table; None: there is none.
        backend: "aot" or "inductor-cache".
        weights: what to pack, see `build.pack.Source`; None: the artifact stays weightless.
    """

    recipe: Recipe
    configs: dict[str, dict[str, Any]]
    variant: str
    unit: str
    index: int
    dynamic: tuple[str, str] | None
    gpu: str
    tune: bool
    scope: str = "full"
    tuning: dict[str, dict[str, int]] | None = None
    weights: dict[str, Any] | None = None
    backend: str = AOT

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "recipe": self.recipe.to_json(),
            "configs": self.configs,
            "variant": self.variant,
            "unit": self.unit,
            "index": self.index,
            "dynamic": self.dynamic,
            "scope": self.scope,
            "gpu": self.gpu,
            "tune": self.tune,
            "tuning": self.tuning,
            "weights": self.weights,
            "backend": self.backend,
        }

    @classmethod
    def from_json(cls, d: dict[str, Any]) -> Job:
        """The inverse of `to_json`."""
        dynamic = tuple(d["dynamic"]) if d["dynamic"] else None
        return cls(**{**d, "recipe": Recipe.from_json(d["recipe"]), "dynamic": dynamic})


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Everything that decides one artifact, worked out before anything is compiled.

    Attributes:
        job: what was asked for.
        recorded: the call. dynamic: its moving dimensions, or None.
        signature: the calls the artifact will serve.
        component: how the module is prepared, after the int8 filter has seen its layers.
        layers: its linear layers as the filter judges them; none where nothing is quantized.
        preparation: what is done to the module before export, as it counts in the key.
        options: Inductor's options. target: what it will run on.
        toolchain: the host compiler. parts: the key's parts.
    """

    job: Job
    recorded: RecordedCall
    dynamic: Range | None
    signature: Signature
    component: ComponentRecipe
    layers: tuple[Layer, ...]
    preparation: dict[str, Any]
    options: dict[str, Any]
    target: Target
    toolchain: Toolchain
    parts: tuple[Part, ...]

    @property
    def key(self) -> str:
        """64 hex digits over `parts`."""
        return key_of(self.parts)

    @property
    def folder(self) -> str:
        """Where the artifact belongs below a store's root, as its manifest will say."""
        slug = f"{self.signature.slug}-{self.key[:12]}"
        return f"artifacts/{self.job.unit}/{self.target.slug}/{slug}"
