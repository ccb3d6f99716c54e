"""One thread that draws, and the bounded queue before it; HTTP is `app`'s."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from .pipeline import Ask, DeadlineError, Painter
from .settings import Settings

log = logging.getLogger("uvicorn.error")

STARTING, READY, DRAINING, FAILED = "starting", "ready", "draining", "failed"


class BusyError(Exception):
    """Every place in the queue is taken; `retry_s`: when some should be free."""

    def __init__(self, retry_s: int) -> None:
        super().__init__(f"Every place in the queue is taken: try again in {retry_s} s.")
        self.retry_s = retry_s


class NotServingError(Exception):
    """It isn't ready, or not any more."""


@dataclass(frozen=True, slots=True)
class _Job:
    ask: Ask
    deadline: float
    png: Future[bytes] = field(default_factory=Future)


class Worker:
    """Accepts requests while it is ready, and answers all that it accepted.

    Attributes:
        state: one of "starting", "ready", "draining", "failed".
        reason: why it isn't ready; "" where it is.
        painter: None until it is ready.
        outcomes: requests by what became of them. busy_s: seconds spent on images.
    """

    def __init__(self, settings: Settings) -> None:
        self.state, self.reason = STARTING, "loading weights and artifacts"
        self.painter: Painter | None = None
        self.outcomes: Counter[str] = Counter()
        self.busy_s = 0.0
        self._settings = settings
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="painter", daemon=True)

    @property
    def waiting(self) -> int:
        """How many requests wait; the one that is drawn isn't among them."""
        return len(self._jobs)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._thread.start()

    def submit(self, ask: Ask) -> Future[bytes]:
        """The PNG to come.

        Raises:
            NotServingError: it isn't ready, or is being shut down.
            BusyError: the queue is full.
        """
        with self._changed:
            if self.state != READY:
                self.outcomes["unavailable"] += 1
                raise NotServingError(self.reason)
            if len(self._jobs) >= self._settings.queue:
                self.outcomes["refused"] += 1
                raise BusyError(self._retry_s())
            job = _Job(ask, time.monotonic() + self._settings.timeout_s)
            self._jobs.append(job)
            self._changed.notify()
        return job.png

    def drain(self) -> None:
        """Accept nothing any more, finish what was accepted, and return: `drain_s` at the most."""
        with self._changed:
            loaded = self.state == READY
            self.state, self.reason = DRAINING, "shutting down"
            self._changed.notify()
        if loaded:
            self._thread.join(self._settings.drain_s)

    def _retry_s(self) -> int:
        drawn = self.outcomes["drawn"]
        each_s = self.busy_s / drawn if drawn else 1.0
        return max(1, math.ceil(each_s * len(self._jobs)))

    def _run(self) -> None:
        begun = time.monotonic()
        # What is imported and loaded now lives as long as the process: Python's collector looking
        # through it takes hundreds of milliseconds of the start, and would stall answers later.
        gc.disable()
        try:
            painter = Painter(self._settings)
        except Exception as e:
            log.exception("The service can't become ready")
            with self._changed:
                self.state, self.reason = FAILED, f"{type(e).__name__}: {e}"
            return
        finally:
            gc.freeze()
            gc.enable()
        with self._changed:
            self.painter = painter
            if self.state == STARTING:
                self.state, self.reason = READY, ""
        log.info("Ready after %.1f s\n%s", time.monotonic() - begun, painter.loaded.report())
        while (job := self._next()) is not None:
            self._answer(job, painter)

    def _next(self) -> _Job | None:
        """The next request; None once there will be none."""
        with self._changed:
            while not self._jobs and self.state == READY:
                self._changed.wait()
            return self._jobs.popleft() if self._jobs else None

    def _answer(self, job: _Job, painter: Painter) -> None:
        if not job.png.set_running_or_notify_cancel():
            self.outcomes["timeout"] += 1  # `app` has answered it already
            return
        begun = time.monotonic()
        try:
            png = painter.draw(job.ask, job.deadline)
        except Exception as e:
            self.outcomes["timeout" if isinstance(e, DeadlineError) else "error"] += 1
            job.png.set_exception(e)
            return
        self.busy_s += time.monotonic() - begun
        self.outcomes["drawn"] += 1
        job.png.set_result(png)
