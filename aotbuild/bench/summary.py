"""Medians, spreads and ratios over runs; pure, so that a figure is never worked out twice."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from aotbuild.bench.ways import AOTBUILD, AOTI, BUNDLE, COLUMNS, COMPILE, EAGER, PACKED, WAYS, Run


def by_way(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each way that has some, in the order of `WAYS`."""
    listed = list(runs)
    found = {way: [r for r in listed if r.way == way] for way in WAYS}
    return {way: mine for way, mine in found.items() if mine}


def column(runs: Sequence[Run], name: str) -> list[float]:
    """One measure of each run."""
    return [float(getattr(r, name)) for r in runs]


def spread(values: Sequence[float]) -> float:
    """Largest less smallest: with three to five repeats a deviation would say too much."""
    return max(values) - min(values)


def medians(runs: Sequence[Run]) -> dict[str, float]:
    """The median of each of `COLUMNS`."""
    return {name: statistics.median(column(runs, name)) for name in COLUMNS}


def ratios(runs: Iterable[Run]) -> Iterator[str]:
    """What aotbuild's medians are of the other ways', a bundle's of a cold compile's; sentences."""
    grouped = by_way(runs)
    if BUNDLE in grouped and COMPILE in grouped:
        warm, cold = (medians(grouped[way])["first_s"] for way in (BUNDLE, COMPILE))
        yield (
            f"from a JIT-cache bundle torch.compile's first step takes {warm:.1f} s: "
            f"{warm / cold:.2f} of the cold one's {cold:.1f} s"
        )
    if AOTBUILD not in grouped:
        return
    ours = medians(grouped[AOTBUILD])
    opened = ours["load_s"] + ours["bind_s"]
    yield f"aotbuild loads and binds in {opened * 1e3:.1f} ms"
    if AOTI in grouped:
        theirs = medians(grouped[AOTI])
        total = theirs["load_s"] + theirs["bind_s"]
        yield f"aoti_load_package with binding takes {total / opened:.0f} times as long"
    if COMPILE in grouped:
        theirs = medians(grouped[COMPILE])
        extra = theirs["first_s"] - theirs["steady_s"]
        yield (
            f"torch.compile's first step beyond a steady one takes {extra:.1f} s: "
            f"{extra / opened:.0f} times as long"
        )
        yield f"steady step: {ours['steady_s'] / theirs['steady_s']:.3f} of torch.compile's"
    if EAGER in grouped:
        theirs = medians(grouped[EAGER])
        derived = max(r.derived_bytes for r in grouped[AOTBUILD])
        yield f"steady step: {ours['steady_s'] / theirs['steady_s']:.3f} of eager's"
        yield (
            f"peak memory: {ours['peak_bytes'] / theirs['peak_bytes']:.3f} of eager's, "
            f"with {derived / 1e6:.1f} MB of derived weights and "
            f"{max(r.freed_bytes for r in grouped[AOTBUILD]) / 1e6:.1f} MB given back"
        )
    if PACKED in grouped:
        theirs = medians(grouped[PACKED])
        start = [sum(m[c] for c in ("weights_s", "load_s", "bind_s")) for m in (ours, theirs)]
        yield (
            f"from packed weights it is ready in {start[1] * 1e3:.0f} ms: "
            f"{start[0] / start[1]:.1f} times faster than from its own, {start[0] * 1e3:.0f} ms"
        )
    errors = [r.error for r in grouped[AOTBUILD] if r.error is not None]
    if errors:
        yield f"its answer is {max(errors):.1e} (relative L2) from eager's"
