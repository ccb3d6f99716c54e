"""The service over HTTP: POST /generate, GET /healthz, /readyz, /metrics; and its shutdown.

uvicorn examples.serve.app:app
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field, StringConstraints

from aotbuild.errors import SignatureMismatch

from .metrics import metrics_text
from .pipeline import Ask, DeadlineError, Painter
from .settings import Settings
from .worker import READY, BusyError, NotServingError, Worker

Size = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")]


class ImageRequest(BaseModel, extra="forbid"):
    """The body of POST /generate; `size` is WxH in pixels, the first served one if not said."""

    prompt: str = Field(max_length=2000)
    seed: int = Field(default=0, ge=0, lt=2**63)
    steps: int = Field(default=20, ge=1)
    size: Size | None = None


def make_app(settings: Settings) -> FastAPI:
    """The service; it loads in the background once it is started."""
    worker = Worker(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        drain_on_signals(worker)
        yield

    app = FastAPI(title="aotbuild example service", lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive: restart it where this doesn't answer."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Whether to send requests here; where not, why."""
        if worker.state != READY or worker.painter is None:
            return JSONResponse({"status": worker.state, "reason": worker.reason}, 503)
        return JSONResponse({"status": READY, "sizes": list(worker.painter.sizes)})

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        """For Prometheus."""
        return PlainTextResponse(metrics_text(worker), media_type="text/plain; version=0.0.4")

    @app.post("/generate", response_class=Response)
    async def generate(request: ImageRequest) -> Response:
        """A PNG; 422 for what isn't served, 429 where the queue is full, 504 after the timeout."""
        try:
            if worker.painter is None:
                raise NotServingError(worker.reason)
            ask = checked(request, worker.painter, settings)
            answer = asyncio.wrap_future(worker.submit(ask))
            png = await asyncio.wait_for(answer, settings.timeout_s)
        except BusyError as e:
            raise HTTPException(429, str(e), {"Retry-After": str(e.retry_s)}) from e
        except NotServingError as e:
            headers = {"Retry-After": "5", "Connection": "close"}
            raise HTTPException(503, f"Not serving: {e}.", headers) from e
        except (DeadlineError, TimeoutError) as e:
            late = f"No answer within {settings.timeout_s:g} s."
            raise HTTPException(504, late) from e
        except SignatureMismatch as e:
            raise HTTPException(422, str(e)) from e
        return Response(png, media_type="image/png")

    return app


def checked(request: ImageRequest, painter: Painter, settings: Settings) -> Ask:
    """The request, where it can be served; else an HTTPException that says what can."""
    size = request.size or painter.sizes[0].partition(":")[0]
    width, height = map(int, size.split("x"))
    if not painter.covers(width, height):
        served = ", ".join(painter.sizes)
        raise HTTPException(422, f"There is no artifact for {size}; served here: {served}.")
    if request.steps > settings.max_steps:
        raise HTTPException(422, f"steps is {request.steps}; at most {settings.max_steps} here.")
    return Ask(
        prompt=request.prompt, seed=request.seed, steps=request.steps, width=width, height=height
    )


def drain_on_signals(worker: Worker) -> None:
    """At SIGTERM and Ctrl-C answer 503 until what was accepted is finished; then end.

    On its own uvicorn closes its socket at once, so that a client sees a refused connection while
    the load balancer still sends to this process. A second signal ends without waiting.
    """
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    stops: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}

    async def drain(number: int) -> None:
        await asyncio.to_thread(worker.drain)
        stops[number](number, None)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if tasks:
            stops[number](number, frame)
        else:
            loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(drain(number))))

    for number, stop in stops.items():
        if callable(stop):
            signal.signal(number, on_signal)


app = make_app(Settings.read())
