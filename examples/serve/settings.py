"""What the service is told, by its environment alone: the one place that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each field is set by `SERVE_` and its name in capitals: `SERVE_QUEUE=16`.

    Attributes:
        checkpoint: a diffusers folder or repository; "" for `tiny`, which needs neither.
        artifacts: a lockfile or a store's folder; "" for aotbuild's default store.
        device: "cuda", "cpu".
        dtype: of the weights, as torch names it; `tiny` has its own.
        queue: how many requests may wait beside the one that is drawn.
        timeout_s: from a request's arrival to its answer, waiting included.
        drain_s: how long a shutdown waits for what was accepted.
        max_steps: the most denoising steps of one request.
    """

    checkpoint: str = ""
    artifacts: str = ""
    device: str = "cpu"
    dtype: str = "float32"
    queue: int = 8
    timeout_s: float = 60.0
    drain_s: float = 120.0
    max_steps: int = 100

    def __post_init__(self) -> None:
        if self.queue < 0 or self.timeout_s <= 0 or self.drain_s <= 0 or self.max_steps < 1:
            raise ValueError("SERVE_QUEUE is at least 0, the other numbers are greater than 0")

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings that `environment` says, the defaults where it says nothing.

        Raises:
            ValueError: naming what isn't a number.
        """
        given: dict[str, str | int | float] = {}
        for name, default in {f: getattr(cls(), f) for f in cls.__slots__}.items():
            text = environment.get(f"SERVE_{name.upper()}")
            if text is None:
                continue
            try:
                given[name] = type(default)(text)
            except ValueError as e:
                raise ValueError(f"SERVE_{name.upper()}={text!r} isn't a number") from e
        return cls(**given)  # type: ignore[arg-type]
