"""Packages that an artifact's code calls: which, of what versions, and whether they are there.

Asks no machine (`probe` does).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from aotbuild.cache.key import Part
from aotbuild.target import version_tuple

REQUIRES = "requires"
"""The entry of the key's part "versions" that holds them: {"flash-attn": ">=2.6.3"}."""


def required(parts: Iterable[Part]) -> dict[str, str]:
    """Package -> version range, of an artifact's manifest or of what an index repeats of it."""
    versions = next((p.value for p in parts if p.name == "versions"), None)
    found = versions.get(REQUIRES) if isinstance(versions, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(name): str(wanted) for name, wanted in found.items()}


def missing(needed: Mapping[str, str], installed: Mapping[str, str | None]) -> Iterator[str]:
    """A sentence for each package that isn't `installed`, or not in a version that serves."""
    for package, wanted in needed.items():
        here = installed.get(package)
        if here is None:
            yield (
                f"Its code calls operators of {package}{wanted}, not installed here; "
                f"`pip install '{package}{wanted}'`."
            )
        elif not _serves(here, wanted):
            yield f"Its code calls operators of {package}{wanted}, and {here} is installed here."


def _serves(version: str, wanted: str) -> bool:
    """Whether a version lies in a range: bounds ">=2.6.3" and "<3", separated by commas."""
    for bound in filter(None, wanted.split(",")):
        match = re.fullmatch(r"\s*(>=|<)\s*(\d+(?:\.\d+)*)\s*", bound)
        if match is None:
            return False
        below = version_tuple(version) < version_tuple(match[2])
        if below is (match[1] == ">="):
            return False
    return True
