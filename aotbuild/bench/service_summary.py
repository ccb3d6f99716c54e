"""What a service's answers come to: counts, percentiles, and what is wrong with them; pure."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aotbuild.bench.service import Measured
from aotbuild.bench.service_load import BUSY, OK, Answer

LARGEST_DIFFERENCE = 1
"""In 1/255: rounding may tip a pixel over to the next value, and no further."""

PERCENTILES = (50, 90, 99)
REFUSED_S = 0.1
"""Within which a service that is full should say so."""


def summary(measured: Measured) -> dict[str, Any]:
    """The figures that `bench service` prints; seconds, and `None` where there are no answers."""
    answers = measured.answers
    drawn = [a for a in answers if a.status == OK]
    refused = [a.seconds for a in answers if a.status == BUSY]
    took_s = max((a.sent_s + a.seconds for a in answers), default=0.0)
    return {
        "requests": len(answers),
        "answered": len(drawn),
        "refused": len(refused),
        "lost": len(lost(answers)),
        "different": len(different(measured)),
        "largest_difference": max(measured.apart.values(), default=0),
        "image_s": measured.image_s,
        "images_per_s": len(drawn) / took_s if took_s else 0.0,
        "latency_s": percentiles([a.seconds for a in drawn]),
        "refusal_s": percentiles(refused),
        "slowest_refusal_s": max(refused, default=None),
        "refused_late": sum(s > REFUSED_S for s in refused),
        "sent_late_s": max((a.late_s for a in answers), default=0.0),
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """`PERCENTILES` of `values`, by "p50"; interpolated between neighbours."""
    if not values:
        return None
    if len(values) == 1:
        return {f"p{p}": values[0] for p in PERCENTILES}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"p{p}": cuts[p - 1] for p in PERCENTILES}


def lost(answers: Sequence[Answer]) -> list[Answer]:
    """Those that got neither an image nor the word that the service is full."""
    return [a for a in answers if a.status not in (OK, BUSY)]


def different(measured: Measured) -> list[int]:
    """Seeds whose image isn't eager's."""
    return [seed for seed, apart in measured.apart.items() if apart > LARGEST_DIFFERENCE]


def complaints(measured: Measured) -> Iterator[str]:
    """What a service must not do, a sentence for each kind."""
    if gone := lost(measured.answers):
        first = gone[0]
        said = first.body[:200].decode(errors="replace")
        yield (
            f"{len(gone)} of {len(measured.answers)} requests got neither an image nor a 429: that "
            f"of seed {first.seed} got {first.status or 'no answer'}, {said}"
        )
    if odd := different(measured):
        yield (
            f"{len(odd)} images differ from eager's: that of seed {odd[0]} by "
            f"{measured.apart[odd[0]]}/255, where {LARGEST_DIFFERENCE}/255 is the most."
        )


def write_csv(path: Path, measured: Measured, facts: Mapping[str, str]) -> None:
    """One line a request; `facts` (machine, versions, sizes) are repeated in each."""
    names = ["seed", "status", "sent_s", "seconds", "late_s", "retry_after", "difference", *facts]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for a in measured.answers:
            writer.writerow(
                {
                    **{n: getattr(a, n) for n in names[:6]},
                    "difference": measured.apart.get(a.seed, ""),
                    **facts,
                }
            )
