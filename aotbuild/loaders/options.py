"""How artifacts are loaded: what `load` and `load_component` were told."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from aotbuild import probe
from aotbuild.cache.store import Store
from aotbuild.errors import UsageError
from aotbuild.loaders.origin import check_checkpoint
from aotbuild.loaders.paths import local_path

QUANTIZATIONS = ("none", "int8dq")
"""Of artifacts, in the words of `aotbuild build --quant`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How artifacts are loaded; `load` says what each means."""

    store: Store
    self_check: bool
    require_verified: bool
    num_runners: int
    strict: bool
    checkpoint: str | PathLike[str] | None = None
    quant: str | None = None
    trial: bool = False
    frees: bool = False
    scope: str | None = None
    bundles: bool = False

    def __post_init__(self) -> None:
        """Refuse with a UsageError what can't be meant, before any work."""
        if type(self.num_runners) is not int or self.num_runners < 1:
            raise UsageError(
                f"num_runners={self.num_runners!r}: a whole number from 1 on is needed."
            )
        if self.quant is not None and self.quant not in QUANTIZATIONS:
            raise UsageError(
                f"quant={self.quant!r}: write {' or '.join(map(repr, QUANTIZATIONS))}."
            )
        if self.checkpoint is not None:
            check_checkpoint(self.checkpoint)


def named_store(store: str | PathLike[str] | None) -> Store:
    """The store that a caller named, by default `$AOTBUILD_STORE`, else ~/.cache/aotbuild.

    Raises:
        UsageError: it is no path.
    """
    if store is None:
        return Store(probe.default_store())
    return Store(local_path("store", store, error=UsageError))
