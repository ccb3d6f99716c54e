"""What a service's answers come to, and when they are complained of."""

from __future__ import annotations

from dataclasses import replace

from aotbuild.bench.service import Measured
from aotbuild.bench.service_load import BUSY, LOST, OK, Answer
from aotbuild.bench.service_summary import complaints, percentiles, summary


def answer(seed: int, status: int, seconds: float) -> Answer:
    return Answer(seed=seed, status=status, sent_s=0.5, seconds=seconds, late_s=0.0, body=b"said")


FINE = Measured(
    answers=(answer(0, OK, 1.5), answer(1, OK, 0.5), answer(2, BUSY, 0.02), answer(3, BUSY, 0.2)),
    apart={0: 1, 1: 0},
    image_s=0.5,
    size="128x128",
)


def test_summary_counts_and_times_when_all_is_well() -> None:
    found = summary(FINE)
    assert (found["answered"], found["refused"], found["lost"]) == (2, 2, 0)
    assert found["images_per_s"] == 1.0
    assert found["refused_late"] == 1
    assert found["slowest_refusal_s"] == 0.2
    assert found["latency_s"]["p50"] == 1.0
    assert not list(complaints(FINE))


def test_complains_of_an_image_when_it_is_two_steps_of_a_pixel_from_eagers() -> None:
    (said,) = complaints(replace(FINE, apart={0: 1, 1: 2}))
    assert "seed 1 by 2/255" in said


def test_complains_of_a_request_when_it_got_neither_image_nor_429() -> None:
    for status in (LOST, 500, 503, 504):
        (said,) = complaints(replace(FINE, answers=(*FINE.answers, answer(4, status, 0.1))))
        assert "seed 4" in said


def test_percentiles_are_none_of_nothing_and_the_value_of_one() -> None:
    assert percentiles([]) is None
    assert percentiles([2.0]) == {"p50": 2.0, "p90": 2.0, "p99": 2.0}
