"""`bench service`: more requests than a service can serve; every image compared with eager's."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotbuild.bench.picture import difference
from aotbuild.bench.pipeline import PROMPT, random_pipeline
from aotbuild.bench.service_load import OK, Answer, Ask, ask, offer
from aotbuild.bench.service_process import Service, running
from aotbuild.errors import BuildError, UsageError
from aotbuild.recipe import load_recipe

Say = Callable[[str], None]

SEQUENTIAL = 8
"""Requests, one after the other, whose median says what the service can serve."""

TIMEOUT_S = 600.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one measurement is of.

    Attributes:
        url: of a service that runs already; None: start the example.
        store: what the example takes artifacts from.
        checkpoint: a diffusers folder that it, and eager, take weights from; None: `tiny`.
        dtype: of that checkpoint's weights, "float32".
        requests, clients: how many.
        load: requests per second, in multiples of what the service can serve.
        steps: denoising steps of each image. size: "128x128"; None: the first that is served.
        work: folder for the service's log.
    """

    url: str | None
    store: Path
    checkpoint: str | None = None
    dtype: str = "float32"
    requests: int
    clients: int
    load: float
    steps: int
    size: str | None
    work: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of it.

    Attributes:
        answers: one for each request.
        apart: by seed, the largest difference of a pixel from eager's image in 1/255, of those that
            got an image.
        image_s: seconds of one request alone, the median.
        size: of the images.
    """

    answers: tuple[Answer, ...]
    apart: dict[int, int]
    image_s: float
    size: str


def measure(plan: Plan, *, say: Say) -> Measured:
    """Offer the load to the service, then draw each answered image eagerly.

    Raises:
        UsageError: there is no example service to start, or nobody answers at the URL.
        BuildError: the service doesn't become ready, or can't draw one image alone.
    """
    with _service(plan) as service:
        say(f"waiting for {service.url}/readyz")
        said = service.wait_until_ready()
        size = plan.size or next(iter(said.get("sizes", ())), "").partition(":")[0]
        if not size:
            raise UsageError(f"{service.url}/readyz names no sizes: say --size WxH.")
        image_s = _alone(service, plan, size)
        say(f"one image takes {image_s:.3f} s; {plan.requests} requests at {plan.load} times that")
        wanted = [_wanted(plan, seed, size) for seed in range(plan.requests)]
        answers = offer(
            service.url,
            wanted,
            clients=plan.clients,
            per_second=plan.load / image_s,
            timeout_s=TIMEOUT_S,
        )
    drawn = [a for a in answers if a.status == OK]
    say(f"drawing {len(drawn)} images eagerly, to compare")
    apart = compare(drawn, eager_pipeline(plan.checkpoint, plan.dtype), wanted)
    return Measured(answers=tuple(answers), apart=apart, image_s=image_s, size=size)


@contextmanager
def _service(plan: Plan) -> Iterator[Service]:
    with ExitStack() as held:
        if plan.url is not None:
            yield Service(plan.url)
            return
        environment = {
            "SERVE_ARTIFACTS": str(plan.store.expanduser().absolute()),
            "AOTBUILD_STORE": str(plan.store.expanduser().absolute()),
            "SERVE_CHECKPOINT": plan.checkpoint or "",
            "SERVE_DTYPE": plan.dtype,
        }
        yield held.enter_context(running(ROOT, plan.work / "service.log", environment))


def _wanted(plan: Plan, seed: int, size: str) -> Ask:
    return Ask(prompt=PROMPT, seed=seed, steps=plan.steps, size=size)


def _alone(service: Service, plan: Plan, size: str) -> float:
    seconds = []
    for seed in range(SEQUENTIAL):
        answer = ask(service.url, _wanted(plan, seed, size), begun=0.0, timeout_s=TIMEOUT_S)
        if answer.status != OK:
            said = answer.body[:300].decode(errors="replace")
            raise BuildError(f"{service.url} answers {answer.status} to one request alone: {said}")
        seconds.append(answer.seconds)
    return statistics.median(seconds)


def eager_pipeline(checkpoint: str | None, dtype: str) -> Any:
    """The stock pipeline that the service's images are compared with."""
    if checkpoint is None:
        return random_pipeline(load_recipe("tiny"))
    import torch
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=getattr(torch, dtype))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def compare(answers: list[Answer], pipeline: Any, wanted: list[Ask]) -> dict[int, int]:
    """By seed, how far each image is from `pipeline`'s: the largest of a pixel, in 1/255."""
    import torch
    from PIL import Image

    asked = {w.seed: w for w in wanted}
    apart = {}
    for answer in answers:
        mine = asked[answer.seed]
        width, height = map(int, mine.size.split("x"))
        expected = pipeline(
            prompt=mine.prompt,
            num_inference_steps=mine.steps,
            width=width,
            height=height,
            generator=torch.Generator().manual_seed(mine.seed),
        ).images[0]
        with Image.open(io.BytesIO(answer.body)) as image:
            apart[answer.seed] = difference(image, expected).largest
    return apart
