"""The ways to a first denoising step that are compared, and what one process measured of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

EAGER = "eager"
COMPILE = "compile"
WARM_FOLDER = "compile-warm-folder"
MEGA_CACHE = "compile-mega-cache"
BUNDLE = "inductor-cache"
AOTI = "aoti_load_package"
AOTBUILD = "aotbuild"
PACKED = "aotbuild-packed"

WAYS = (EAGER, COMPILE, WARM_FOLDER, MEGA_CACHE, BUNDLE, AOTI, AOTBUILD, PACKED)
"""In the order in which each round runs them: the cold compile fills what the warm ones read."""

COLUMNS = ("import_s", "weights_s", "load_s", "bind_s", "first_s", "steady_s", "peak_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do.

    Attributes:
        way: one of `WAYS`.
        config: of the component, with its class.
        dtype: of the weights, "float32".
        checkpoint: folder laid out as diffusers does, whose weight file every process maps but
            those of `PACKED`.
        store: the store's folder; for `BUNDLE` one with nothing but the bundle.
        key: of the artifact, from which every way takes the call's shape.
        name: the component's.
        component: its recipe, as JSON: preparation and inductor options of the compiled ways.
        steps: steady steps, of which the median counts.
        mega_cache: file that a cold compile leaves and the mega-cache way reads.
        output: file for the step's answer.
    """

    way: str
    config: dict[str, Any]
    dtype: str
    checkpoint: str
    store: str
    key: str
    name: str
    component: dict[str, Any]
    steps: int
    mega_cache: str
    output: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one process measured.

    Attributes:
        way: one of `WAYS`.
        import_s: torch, diffusers' class and what the way needs beside them.
        weights_s: building the module and mapping its weights; for `PACKED`, which has no module,
            hashing and mapping the constants.
        load_s: opening the compiled code; wrapping the module where there is none.
        bind_s: giving it the weights, in the layout that it reads: quantized, where it reads int8.
        first_s: the first step.
        steady_s: median of the steps after it.
        peak_bytes: most resident memory of the process, mapped weights included.
        derived_bytes: weights that aotbuild laid out anew, or made beside the module's own.
        freed_bytes: weights of the module's own that aotbuild gave back.
        error: relative L2 distance of the step's answer from eager's; None until compared.
    """

    way: str
    import_s: float
    weights_s: float
    load_s: float
    bind_s: float
    first_s: float
    steady_s: float
    peak_bytes: int
    derived_bytes: int = 0
    freed_bytes: int = 0
    error: float | None = None

    @property
    def extra_s(self) -> float:
        """What the first answer costs beyond imports, weights and one steady step."""
        return self.load_s + self.bind_s + max(0.0, self.first_s - self.steady_s)
