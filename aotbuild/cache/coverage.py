"""What a collection covers: which artifacts run on a given machine, and serve a given resolution.

Asked by people and scripts; a loader asks `match`, which knows the module too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from aotbuild.cache.item import Item
from aotbuild.cache.units import is_unit_of
from aotbuild.target import Accepted, Verdict, judge

_RANGE = re.compile(r"(\d+)x(\d+)(?::(\d+)x(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine by its GPU or its CPU's level alone; torch and the system are taken as right.

    Attributes:
        device: "cuda" or "cpu".
        arch: "sm_80", "x86-64-v3".
        shared_memory_bytes: the most that one block may have; None on a CPU.
    """

    device: str
    arch: str
    shared_memory_bytes: int | None = None

    def judge(self, item: Item) -> Verdict:
        """Whether the artifact runs on it, or a note that it is untuned."""
        here = replace(
            item.target,
            device=self.device,
            arch=self.arch,
            shared_memory_bytes=self.shared_memory_bytes,
        )
        return judge(item.target, here, verified_torch={here.torch})


def serves(item: Item, width: int, height: int) -> bool:
    """Whether the artifact was built for that size in pixels, alone or in a range."""
    match = _RANGE.fullmatch(item.covers.resolution or "")
    if match is None:
        return False
    low = int(match[1]), int(match[2])
    high = (int(match[3]), int(match[4])) if match[3] else low
    return low[0] <= width <= high[0] and low[1] <= height <= high[1]


def select(
    items: Iterable[Item],
    *,
    keys: Iterable[str] = (),
    recipe: str | None = None,
    component: str | None = None,
    machine: Machine | None = None,
    size: tuple[int, int] | None = None,
) -> Iterator[Item]:
    """Those that all of the arguments name.

    Args:
        keys: beginnings of keys, of which any will do; none: whatever key.
        component: "unet", or a unit, "vae.decode".
        size: (width, height) in pixels.
    """
    prefixes = tuple(k.strip().lower() for k in keys)
    for item in items:
        if (
            (not prefixes or item.key.startswith(prefixes))
            and recipe in (None, item.covers.recipe)
            and (component is None or is_unit_of(item.component, component))
            and (size is None or serves(item, *size))
            and (machine is None or isinstance(machine.judge(item), Accepted))
        ):
            yield item
