"""One process of the ladder: makes the pipeline as one rung has it, and times its images.

    python -m aotbuild.bench.ladder.worker < job.json      prints a document as the last line

Which rungs are climbed is `climb`'s.
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import json  # noqa: E402 (the clock starts before any import)
import sys  # noqa: E402
import warnings  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do.

    Attributes:
        recipe: as JSON, with the resolution, the batch and the rung's precision.
        rung: its name.
        device: "cpu" or "cuda".
        steps: denoising steps of an image.
        images: how many are timed after the first.
        checkpoint: a diffusers folder or Hub id; None for random weights.
        store: folder of artifacts.
        jpeg, pixels: files for the first image, for people and without loss.
    """

    recipe: dict[str, Any]
    rung: str
    device: str
    steps: int
    images: int
    checkpoint: str | None
    store: str
    jpeg: str
    pixels: str


def run(job: Job) -> dict[str, Any]:
    """Make the images; what was measured, by the names of `climb.Row`'s fields."""
    import_libraries()
    imported = time.perf_counter()
    from aotbuild.recipe import Recipe

    recipe = Recipe.from_json(job.recipe)
    pipeline = make_pipeline(job, recipe)
    weighted = time.perf_counter()
    found = make_ready(job, recipe, pipeline)
    ready = time.perf_counter()
    image, first_s = timed_image(job, recipe, pipeline)
    later = [timed_image(job, recipe, pipeline)[1] for _ in range(job.images)]
    image.convert("RGB").save(job.jpeg, quality=90)
    image.convert("RGB").save(job.pixels)
    return {
        "import_s": imported - STARTED,
        "weights_s": weighted - imported,
        "ready_s": ready - weighted,
        "first_s": first_s,
        "latencies_s": later,
        "peak_bytes": peak_bytes(job.device),
        **synchronizations(job, recipe, pipeline),
        **(found() if found is not None else {}),
    }


def import_libraries() -> None:
    """What a service imports: its pipeline's library, and the loader."""
    import diffusers  # noqa: F401
    import torch  # noqa: F401

    import aotbuild.loaders.load  # noqa: F401


def make_pipeline(job: Job, recipe: Any) -> Any:
    """The stock pipeline on its device, with a checkpoint's weights or random ones."""
    import torch

    from aotbuild.bench.pipeline import random_pipeline
    from aotbuild.build.modules import diffusers_class

    if job.checkpoint is None:
        pipeline = random_pipeline(recipe)
    else:
        dtype = getattr(torch, recipe.torch_dtype)
        pipeline = diffusers_class(recipe.pipeline).from_pretrained(
            job.checkpoint, torch_dtype=dtype
        )
        pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(job.device)


def make_ready(job: Job, recipe: Any, pipeline: Any) -> Any:
    """Prepare, compile or load as the rung says; of artifacts a function that tells their calls."""
    import torch

    from aotbuild.bench.ladder.ready import compile_components, load_artifacts, prepare_components
    from aotbuild.bench.ladder.rungs import AOT, EAGER, RUNGS

    rung = next(r for r in RUNGS if r.name == job.rung)
    if rung.dtype == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if rung.way == AOT:
        return load_artifacts(pipeline, recipe, Path(job.store))
    prepare_components(pipeline, recipe, rung)
    if rung.way != EAGER:
        compile_components(pipeline, recipe, rung)
    return None


def timed_image(job: Job, recipe: Any, pipeline: Any) -> tuple[Any, float]:
    """One image, or the first frame of a video, and how long the call took."""
    import torch

    from aotbuild.bench.pipeline import PROMPT, pipeline_inputs

    prompt = PROMPT if getattr(pipeline, "text_encoder", None) is not None else None
    inputs = pipeline_inputs(recipe, prompt=prompt, steps=job.steps)
    inputs = {n: v.to(job.device) if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}
    begun = time.perf_counter()
    with torch.no_grad():
        answer = pipeline(**inputs)
    if job.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    images = getattr(answer, "images", None)
    return (answer.frames[0][0] if images is None else images[0]), seconds


def peak_bytes(device: str) -> int:
    """Most memory in use: of the GPU by torch's allocator, or of the process."""
    import torch

    from aotbuild.probe import peak_memory_bytes

    return torch.cuda.max_memory_allocated() if device == "cuda" else peak_memory_bytes()


def synchronizations(job: Job, recipe: Any, pipeline: Any) -> dict[str, Any]:
    """On a GPU, how often a step waits for it, in one more image; and what may cause that."""
    if job.device != "cuda":
        return {}
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            timed_image(job, recipe, pipeline)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    count = sum("synchroniz" in str(w.message) for w in caught)
    sigmas = getattr(pipeline.scheduler, "sigmas", None)
    on_gpu = isinstance(sigmas, torch.Tensor) and sigmas.is_cuda
    return {
        "syncs_per_step": count / job.steps,
        "warning": "the scheduler keeps its sigmas on the GPU: each step waits" if on_gpu else "",
    }


def main() -> None:
    """Run the job on stdin; memory that doesn't suffice is an answer, not a crash."""
    import torch

    from aotbuild.bench.ladder.ready import UnclimbableError
    from aotbuild.bench.ladder.rungs import ACCELERATE

    job = Job(**json.load(sys.stdin))
    try:
        answer = run(job)
    except (torch.OutOfMemoryError, MemoryError):
        answer = {"status": "out of memory"}
    except RuntimeError as e:
        if "not enough memory" not in str(e):  # what torch's CPU allocator says
            raise
        answer = {"status": "out of memory"}
    except UnclimbableError as e:
        answer = {"status": "skipped", "reason": str(e)}
    except TypeError as e:
        if job.rung != ACCELERATE:
            raise
        # Its wrappers aren't the layers that they wrap: a UNet asks its own for their length.
        answer = {"status": "skipped", "reason": f"accelerate can't compile its regions: {e}"}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
