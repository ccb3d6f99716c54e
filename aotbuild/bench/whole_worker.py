"""One process of `bench cold-start --whole`: a stock pipeline's first image, each part timed.

It is started by `START`, which looks at the clock before anything is imported. Which ways are run,
how often and in what order is `whole`'s.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aotbuild.bench.ways import COMPILE
from aotbuild.bench.whole_ways import OURS, WholeJob

START = (
    "import time; begun = time.perf_counter()\n"
    "import sys; 'no-gc' in sys.argv and __import__('gc').disable()\n"
    "import torch; imported = time.perf_counter()\n"
    "from aotbuild.bench.whole_worker import main; main(begun, imported)"
)
"""For `python -c`; reads a job from stdin, prints a `Whole` as its last line.

With the argument "no-gc" Python's cyclic garbage collector is off until the first image is there.
"""

_PAGE_BYTES = 4096


def main(begun: float, imported: float) -> None:
    """Do the job on stdin.

    Args:
        begun: when the interpreter began with its first line. imported: when torch was there.
    """
    job = WholeJob(**json.load(sys.stdin))
    parts = {"interpreter_s": begun - job.started, "torch_s": imported - begun}
    sys.stdout.write(json.dumps(run(job, parts)) + "\n")


def run(job: WholeJob, parts: dict[str, float]) -> dict[str, Any]:
    """The fields of a `Whole`; `parts` has those that are over."""
    _timed(parts, "diffusers_s", _import_classes, job)
    if job.way in OURS:
        _timed(parts, "aotbuild_s", importlib.import_module, "aotbuild.loaders.load")
    pipeline = _timed(parts, "weights_s", _pipeline, job)
    if job.way in OURS:
        loaded = _timed(parts, "load_s", _load, job, pipeline)
        parts["bind_s"] = sum(unit["bind_s"] for unit in loaded.metrics().values())
        parts["load_s"] -= parts["bind_s"]
    elif job.way == COMPILE:
        _timed(parts, "load_s", _compile, job, pipeline)
    image, first = _image(job, pipeline)
    total_s = time.perf_counter() - job.started
    gc.enable()
    later = [_image(job, pipeline)[1] for _ in range(job.images)]
    image.save(job.output)
    parts |= first
    none = dict.fromkeys(("aotbuild_s", "load_s", "bind_s"), 0.0)
    return {
        "way": job.way,
        **none,
        **parts,
        "rest_s": total_s - sum(parts.values()),
        "total_s": total_s,
        **{f"steady_{n}": statistics.median(found[n] for found in later) for n in first},
    }


def _timed(parts: dict[str, float], name: str, work: Any, *arguments: Any) -> Any:
    begun = time.perf_counter()
    try:
        return work(*arguments)
    finally:
        parts[name] = time.perf_counter() - begun


def _import_classes(job: WholeJob) -> None:
    """diffusers, the pipeline's class, and those of what it is made of."""
    getattr(importlib.import_module("diffusers"), job.pipeline)
    for library, name in _components(job).values():
        getattr(importlib.import_module(library), name)


def _components(job: WholeJob) -> dict[str, tuple[str, str]]:
    """What the checkpoint has: name -> library and class."""
    index = json.loads(Path(job.checkpoint, "model_index.json").read_text(encoding="utf-8"))
    return {n: (v[0], v[1]) for n, v in index.items() if isinstance(v, list) and all(v)}


def _pipeline(job: WholeJob) -> Any:
    """The stock pipeline, all of its weights read."""
    import diffusers
    import torch

    cls = getattr(diffusers, job.pipeline)
    absent = dict.fromkeys({*cls._get_signature_keys(cls)[0]} - {*_components(job)})
    dtype = getattr(torch, job.dtype)
    pipeline = cls.from_pretrained(job.checkpoint, torch_dtype=dtype, **absent)
    pipeline.set_progress_bar_config(disable=True)
    for module in pipeline.components.values():
        if isinstance(module, torch.nn.Module):
            for tensor in module.state_dict().values():
                flat = tensor.detach().as_strided((tensor.numel(),), (1,))
                flat[:: max(1, _PAGE_BYTES // tensor.element_size())].sum()
    return pipeline


def _load(job: WholeJob, pipeline: Any) -> Any:
    import aotbuild

    store = Path(job.store)
    return aotbuild.load(pipeline, store, store=store, fallback="error")


def _compile(job: WholeJob, pipeline: Any) -> None:
    """`torch.compile` on what the artifacts are of, with the recipe's options."""
    import torch

    for name, methods in job.methods.items():
        module = getattr(pipeline, name)
        for method in methods:
            function = torch.compile(getattr(module, method), options=job.options[name] or None)
            setattr(module, method, function)


def _image(job: WholeJob, pipeline: Any) -> tuple[Any, dict[str, float]]:
    """An image, and the seconds of its parts: the scheduler is called between them."""
    import torch
    from safetensors.torch import load_file

    marks: dict[str, float] = {}
    tensors, generator = load_file(job.tensors), torch.Generator().manual_seed(job.seed)
    with _marked(pipeline.scheduler, ("set_timesteps", "step"), marks):
        begun = time.perf_counter()
        image = pipeline(**job.call, **tensors, generator=generator).images[0]
        ended = time.perf_counter()
    prompted, stepped = marks["set_timesteps"], marks["step"]
    return image, {
        "prompt_s": prompted - begun,
        "step_s": stepped - prompted,
        "decode_s": ended - stepped,
    }


@contextmanager
def _marked(scheduler: Any, names: tuple[str, ...], marks: dict[str, float]) -> Iterator[None]:
    """Note when each of the scheduler's methods has last returned."""

    def noting(name: str) -> Any:
        method = getattr(scheduler, name)

        @functools.wraps(method)  # pipelines look at its arguments
        def wrapped(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            marks[name] = time.perf_counter()
            return answer

        return wrapped

    for name in names:
        setattr(scheduler, name, noting(name))
    try:
        yield
    finally:
        for name in names:
            delattr(scheduler, name)
