"""A method that was swapped, and what is behind it."""

from __future__ import annotations

from dataclasses import dataclass

from aotbuild.loaders.component import Component
from aotbuild.loaders.dispatch import Dispatcher
from aotbuild.loaders.swap import Swap


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A swapped method: the artifacts behind it, by rank. Blocks of one label have one name."""

    name: str
    component: Component
    dispatcher: Dispatcher
    swap: Swap
