"""How artifacts are loaded: what `load` and `load_component` were told."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from aotbuild.cache.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How artifacts are loaded; `load` says what each means."""

    store: Store
    self_check: bool
    require_verified: bool
    num_runners: int
    strict: bool
    checkpoint: str | PathLike[str] | None = None
    trial: bool = False
    frees: bool = False
    scope: str | None = None
    bundles: bool = False
