"""`/metrics`: what the service and the loader counted, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from .worker import READY, Worker


def metrics_text(worker: Worker) -> str:
    """One page. Source: Prometheus, "Exposition formats", text format 0.0.4."""
    return "\n".join(_lines(worker)) + "\n"


def _lines(worker: Worker) -> Iterator[str]:
    yield "# TYPE serve_ready gauge"
    yield f"serve_ready {int(worker.state == READY)}"
    yield "# TYPE serve_waiting gauge"
    yield f"serve_waiting {worker.waiting}"
    yield "# TYPE serve_requests_total counter"
    for outcome, count in sorted(worker.outcomes.items()):
        yield f'serve_requests_total{{outcome="{outcome}"}} {count}'
    yield "# TYPE serve_drawing_seconds_total counter"
    yield f"serve_drawing_seconds_total {worker.busy_s:.6f}"
    if worker.painter is None:
        return
    units = worker.painter.loaded.metrics()
    yield "# TYPE aotbuild_hits_total counter"
    for unit, found in units.items():
        for key, count in found["hits"].items():
            yield f'aotbuild_hits_total{{unit="{unit}",artifact="{key}"}} {count}'
    yield "# TYPE aotbuild_fallbacks_total counter"
    for unit, found in units.items():
        for kind, count in found["fallbacks"].items():
            yield f'aotbuild_fallbacks_total{{unit="{unit}",kind="{kind}"}} {count}'
