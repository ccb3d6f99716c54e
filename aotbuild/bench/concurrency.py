"""Whether a run holds the GIL: the stall of a ticking thread, and two threads against one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aotbuild.bench.subject import make_subject
from aotbuild.build.request import Event
from aotbuild.recipe import load_recipe

RESOLUTION = "512x512"
"""At which a step of `tiny` takes some hundred milliseconds."""

TICK_S = 0.001


def measure(*, store: Path, repeats: int, on_event: Callable[[Event], None]) -> dict[str, Any]:
    """The longest stall of a 1 ms ticker beside a run, and two threads' share of the time in turn.

    Returns:
        `run_ms` and `stall_ms` with all intra-op threads; `in_turn_s`, `two_threads_s` and their
        `ratio` for two runners with one intra-op thread each; `control_ratio` the same for plain
        matrix products, which need no GIL either: what this machine's cores can give at present.
        The best of `repeats`, as whatever else the machine does only ever adds.
    """
    import torch

    import aotbuild

    recipe = load_recipe("tiny").override(resolution=RESOLUTION)
    subject = make_subject(recipe, store, on_event)
    pipeline = SimpleNamespace(**{subject.component: subject.module})
    loaded = aotbuild.load(
        pipeline,
        store,
        store=store,
        components=[subject.entry.manifest.component],
        fallback="error",
        num_runners=2,
    )

    def step() -> None:
        with torch.no_grad():
            subject.module(**subject.call)

    step()
    stalls = [beside_ticker(step) for _ in range(repeats)]
    stall_s, run_s = min(stalls)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step()
        in_turn_s, both_s = alone_and_both(step, repeats)
        control = alone_and_both(multiply, repeats)
    finally:
        torch.set_num_threads(threads)
        loaded.restore()
    return {
        "run_ms": round(run_s * 1e3, 1),
        "stall_ms": round(stall_s * 1e3, 1),
        "in_turn_s": round(in_turn_s, 3),
        "two_threads_s": round(both_s, 3),
        "ratio": round(both_s / in_turn_s, 3),
        "control_ratio": round(control[1] / control[0], 3),
    }


def beside_ticker(step: Callable[[], None]) -> tuple[float, float]:
    """(longest time between two ticks, the step's time) while `step` runs in this thread."""
    done, ticks = threading.Event(), [time.perf_counter()]

    def tick() -> None:
        while not done.is_set():
            time.sleep(TICK_S)
            ticks.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    ticker.start()
    time.sleep(20 * TICK_S)
    begun = time.perf_counter()
    step()
    ended = time.perf_counter()
    done.set()
    ticker.join()
    during = [t for t in ticks if begun - TICK_S * 2 <= t] + [time.perf_counter()]
    return max(b - a for a, b in itertools.pairwise(during)), ended - begun


def alone_and_both(step: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Seconds of two steps in turn, and of two at once, measured alternately."""
    pairs = [(timed(in_turn, step), timed(in_threads, step)) for _ in range(repeats)]
    return min(a for a, _ in pairs), min(b for _, b in pairs)


def multiply() -> None:
    """Some hundred milliseconds of one core."""
    import torch

    matrix = torch.ones(1024, 1024)
    for _ in range(16):
        matrix @ matrix


def in_turn(step: Callable[[], None]) -> None:
    """Two steps, one after the other."""
    step()
    step()


def in_threads(step: Callable[[], None]) -> None:
    """Two steps at once, a thread each."""
    threads = [threading.Thread(target=step) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(work: Callable[[Callable[[], None]], None], step: Callable[[], None]) -> float:
    """Seconds that `work` takes over `step`."""
    begun = time.perf_counter()
    work(step)
    return time.perf_counter() - begun
