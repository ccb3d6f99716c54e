"""From the start of a process to its first image: what a process is told, what it measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from aotbuild.bench.ways import AOTBUILD, COMPILE, EAGER

NO_GC = "aotbuild-no-gc"
"""`AOTBUILD`, Python's cyclic garbage collector off until the first image is there."""

WHOLE_WAYS = (EAGER, COMPILE, AOTBUILD, NO_GC)
"""In the order in which each round runs them."""

OURS = (AOTBUILD, NO_GC)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeJob:
    """What one process is to do.

    Attributes:
        way: one of `WHOLE_WAYS`.
        started: when it was started, by `time.perf_counter`, which counts alike in every process of
            a Linux machine (CLOCK_MONOTONIC).
        pipeline: its class.
        checkpoint: a diffusers folder. dtype: of the weights, "float32".
        store: folder of artifacts.
        methods: component -> its methods that are compiled.
        options: component -> inductor options of its recipe, for the compiled way.
        call: arguments of the call that are no tensors; its tensors are in the file `tensors`.
        seed: of the latents.
        images: drawn after the first, of which the median counts.
        output: file for the first image.
    """

    way: str
    started: float
    pipeline: str
    checkpoint: str
    dtype: str
    store: str
    methods: dict[str, list[str]]
    options: dict[str, dict[str, Any]]
    call: dict[str, Any]
    tensors: str
    seed: int
    images: int
    output: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What one process measured, in seconds; the parts before `total_s` add up to it.

    Attributes:
        way: one of `WHOLE_WAYS`.
        interpreter_s: until the first line of Python ran.
        torch_s, diffusers_s, aotbuild_s: imports, in this order; diffusers' with the classes of the
            pipeline's components.
        weights_s: `from_pretrained`, and every page of the weights touched, so that reading the
            file is in here and not in the first step.
        load_s, bind_s: of `aotbuild.load`; wrapping the methods where they are compiled.
        prompt_s, step_s, decode_s: of the first image: until its timesteps are set, the prompt's
            encoding above all; until the scheduler's last step; until the image is there.
        rest_s: whatever isn't in one of the others.
        total_s: until the first image was there.
        steady_prompt_s, steady_step_s, steady_decode_s: the same of an image after it.
        difference: of a pixel of the first image from eager's, the largest, in 1/255; None until
            compared.
    """

    way: str
    interpreter_s: float
    torch_s: float
    diffusers_s: float
    aotbuild_s: float
    weights_s: float
    load_s: float
    bind_s: float
    prompt_s: float
    step_s: float
    decode_s: float
    rest_s: float
    total_s: float
    steady_prompt_s: float
    steady_step_s: float
    steady_decode_s: float
    difference: int | None = None

    @property
    def first_s(self) -> float:
        """The first image."""
        return self.prompt_s + self.step_s + self.decode_s

    @property
    def steady_s(self) -> float:
        """A later one."""
        return self.steady_prompt_s + self.steady_step_s + self.steady_decode_s

    @property
    def step_beyond_s(self) -> float:
        """The first denoising step beyond a steady one."""
        return max(0.0, self.step_s - self.steady_step_s)

    @property
    def image_beyond_s(self) -> float:
        """The first image beyond a steady one, the step among it."""
        return max(0.0, self.first_s - self.steady_s)

    @property
    def own_s(self) -> float:
        """All but the interpreter, importing torch and diffusers, the weights, a steady image."""
        return self.aotbuild_s + self.load_s + self.bind_s + self.image_beyond_s + self.rest_s


PARTS = {
    "interpreter_s": "interpreter",
    "torch_s": "import torch",
    "diffusers_s": "import diffusers",
    "aotbuild_s": "import aotbuild",
    "weights_s": "weights",
    "load_s": "load",
    "bind_s": "bind",
    "prompt_s": "first prompt",
    "step_s": "first step",
    "decode_s": "first decode",
    "rest_s": "the rest",
    "total_s": "first image after",
    "steady_s": "a steady image",
    "steady_step_s": "a steady step",
    "step_beyond_s": "first step beyond a steady one",
    "image_beyond_s": "first image beyond a steady one",
    "own_s": "beyond interpreter, torch, diffusers, weights, a steady image",
}
"""What is printed of a `Whole`, and its words."""
