"""The pipeline: stock diffusers, artifacts swapped in, one warm step; and an image of a request.

What to change for a model of your own is here: `stock_pipeline`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    import aotbuild


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request asks for; sizes in pixels."""

    prompt: str
    seed: int
    steps: int
    width: int
    height: int


class DeadlineError(Exception):
    """The request's time is over."""


class Painter:
    """A pipeline that draws, ready as soon as it is made: bound, and warm.

    Attributes:
        loaded: what `aotbuild.load` says of it.
        sizes: what it has artifacts for: "1024x1024", or a range, "768x768:1280x1280".
    """

    def __init__(self, settings: Settings) -> None:
        """Load it all.

        Raises:
            AotbuildError: a component has no artifact that can serve, or one was altered.
        """
        import aotbuild
        from aotbuild.probe import default_store

        self._pipe = stock_pipeline(settings)
        source = Path(settings.artifacts or default_store())
        # What no artifact covers is an error: a client would rather hear that than wait for eager.
        self.loaded = aotbuild.load(self._pipe, source, fallback="error")
        check_undamaged(source, self.loaded)
        self.sizes = sizes_of(self.loaded)
        for size in self.sizes:
            width, height = map(int, size.partition(":")[0].split("x"))
            self.draw(Ask(prompt="warm", seed=0, steps=1, width=width, height=height))

    def covers(self, width: int, height: int) -> bool:
        """Whether there are artifacts for that size."""
        return any(_within(size, width, height) for size in self.sizes)

    def draw(self, ask: Ask, deadline: float = float("inf")) -> bytes:
        """A PNG; the same one for the same request.

        Args:
            deadline: by `time.monotonic`, looked at between steps.

        Raises:
            DeadlineError: it passed.
            SignatureMismatch: no artifact covers the call.
        """
        import torch

        def look_at_clock(*arguments: Any) -> Any:
            if time.monotonic() > deadline:
                raise DeadlineError
            return arguments[-1]  # the tensors that the pipeline goes on with, as they are

        image = self._pipe(
            prompt=ask.prompt,
            num_inference_steps=ask.steps,
            width=ask.width,
            height=ask.height,
            generator=torch.Generator().manual_seed(ask.seed),
            callback_on_step_end=look_at_clock,
        ).images[0]
        buffer = io.BytesIO()
        image.save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()


def stock_pipeline(settings: Settings) -> Any:
    """The checkpoint's own pipeline, on its device; `tiny` with random weights where there is none.

    The recipe that the artifacts were built from says how the weights must be: dtype above all.
    """
    if not settings.checkpoint:
        from aotbuild.bench.pipeline import random_pipeline
        from aotbuild.recipe import load_recipe

        return random_pipeline(load_recipe("tiny"))
    import torch
    from diffusers import DiffusionPipeline

    dtype = getattr(torch, settings.dtype)
    pipe = DiffusionPipeline.from_pretrained(settings.checkpoint, torch_dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(settings.device)


def check_undamaged(source: Path, loaded: aotbuild.Loaded) -> None:
    """Refuse to serve without an artifact that was meant for this pipeline, and was altered.

    `aotbuild.load` is content where others serve the unit; a service would miss some of its calls.

    Raises:
        ArtifactError: naming the file.
    """
    from aotbuild.cache.artifact import Broken
    from aotbuild.cache.store import Store
    from aotbuild.errors import ArtifactError
    from aotbuild.probe import default_store

    store = Store(source if source.is_dir() else default_store())
    refused = tuple(r["key"] for r in loaded.to_json()["rejected"])
    for entry in store.entries(p for p in store.folders() if p.name.endswith(refused)):
        if isinstance(entry, Broken):
            raise ArtifactError(f"{entry.folder}: {entry.reason}")
        store.verify(entry)


def sizes_of(loaded: aotbuild.Loaded) -> tuple[str, ...]:
    """The sizes that every swapped unit has an artifact for, as they were built."""
    units = loaded.to_json()["units"].values()
    built = [{a["covers"]["resolution"] for a in unit["artifacts"]} - {None} for unit in units]
    return tuple(sorted(set.intersection(*built)))


def _within(size: str, width: int, height: int) -> bool:
    low, _, high = size.partition(":")
    smallest, largest = _numbers(low), _numbers(high or low)
    return smallest[0] <= width <= largest[0] and smallest[1] <= height <= largest[1]


def _numbers(size: str) -> Sequence[int]:
    return tuple(map(int, size.split("x")))
