"""What a unit's calls came to that no artifact served: counted, and said once.

A component has one; the repeated blocks of one class share one, so that a warning comes once.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotbuild.loaders.locks import forking_lock


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a call isn't served by an artifact: a kind to count by, and a sentence."""

    kind: str
    reason: str


class Tally:
    """Counts by kind, and the last reason of each; safe to use from several threads."""

    def __init__(self) -> None:
        self.fallbacks: dict[str, int] = {}
        self.last_reason: dict[str, str] = {}
        self._lock = forking_lock()

    def count(self, miss: Miss) -> bool:
        """Count it; whether it was the first of its kind."""
        with self._lock:
            first = miss.kind not in self.fallbacks
            self.fallbacks[miss.kind] = self.fallbacks.get(miss.kind, 0) + 1
            self.last_reason[miss.kind] = miss.reason
        return first
