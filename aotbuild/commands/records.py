"""A verification record as people read it; `build.verify` makes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def headline(record: Mapping[str, Any]) -> str:
    """Whether it passed, and where: "passed on x86-64-v4, torch 2.13.0+cpu"."""
    verdict = "passed" if record.get("passed") is True else "did not pass"
    target = record.get("target")
    if not isinstance(target, Mapping):
        return verdict
    return f"{verdict} on {target.get('arch')}, torch {target.get('torch')}"


def case_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Each case's sizes and errors."""
    for case in record.get("cases", ()):
        sizes = ", ".join(f"{n} {v}" for n, v in case["sizes"].items()) or "its one shape"
        yield (
            f"{sizes}: relative L2 error {case['artifact_error']:.1e} (eager "
            f"{case['eager_error']:.1e}, at most {case['bound']:.1e})"
        )
