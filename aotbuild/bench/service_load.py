"""Clients that ask a service for images at a given rate, whatever it answers; compares nothing."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

OK, BUSY = 200, 429
LOST = 0
"""Instead of a status: the connection was refused or broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request.

    Attributes:
        seed: by which the image is known. size: "128x128".
    """

    prompt: str
    seed: int
    steps: int
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one request.

    Attributes:
        seed: the request's.
        status: HTTP's, or `LOST`.
        sent_s: since the first request. seconds: until the whole answer was there.
        late_s: how long after its time it was sent, as every client waited for an answer.
        body: a PNG where `status` is `OK`; else what was said.
        retry_after: as the answer says, "" where it doesn't.
    """

    seed: int
    status: int
    sent_s: float
    seconds: float
    late_s: float
    body: bytes
    retry_after: str = ""


def ask(url: str, wanted: Ask, *, begun: float, late_s: float = 0.0, timeout_s: float) -> Answer:
    """Send one request, on a connection of its own.

    Args:
        begun: when the first was sent, by `time.perf_counter`.
        timeout_s: after which the request counts as lost.
    """
    place = urlsplit(url)
    body = json.dumps(
        {f: getattr(wanted, f) for f in ("prompt", "seed", "steps", "size")}, sort_keys=True
    )
    sent = time.perf_counter()
    status, answer, retry_after = LOST, b"", ""
    connection = http.client.HTTPConnection(place.netloc, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{place.path}/generate", body, headers)
        response = connection.getresponse()
        answer, status = response.read(), response.status
        retry_after = response.headers.get("Retry-After", "")
    except (OSError, http.client.HTTPException) as e:
        answer = repr(e).encode()
    finally:
        connection.close()
    return Answer(
        seed=wanted.seed,
        status=status,
        sent_s=sent - begun,
        seconds=time.perf_counter() - sent,
        late_s=late_s,
        body=answer,
        retry_after=retry_after,
    )


def offer(
    url: str, wanted: list[Ask], *, clients: int, per_second: float, timeout_s: float
) -> list[Answer]:
    """Send each request at its time, request i at i / `per_second`, from `clients` threads.

    Returns:
        An answer for each of `wanted`, in their order.
    """
    answers: list[Answer | None] = [None] * len(wanted)
    next_one, lock = itertools.count(), threading.Lock()
    begun = time.perf_counter()

    def client() -> None:
        while True:
            with lock:
                index = next(next_one)
            if index >= len(wanted):
                return
            due = begun + index / per_second
            time.sleep(max(0.0, due - time.perf_counter()))
            late_s = time.perf_counter() - due
            answers[index] = ask(
                url, wanted[index], begun=begun, late_s=late_s, timeout_s=timeout_s
            )

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [a for a in answers if a is not None]
