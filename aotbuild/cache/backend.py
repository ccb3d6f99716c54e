"""How an artifact was compiled: ahead of time, or by `torch.compile`, whose caches it then carries.

What the code of either is used for is `loaders`' concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aotbuild.cache.files import FileRecord, Packed
from aotbuild.cache.key import Part
from aotbuild.canonical import checked_fields

AOT = "aot"
INDUCTOR_CACHE = "inductor-cache"
BACKENDS = (AOT, INDUCTOR_CACHE)

PACKAGES = {AOT: "package.pt2", INDUCTOR_CACHE: "jit-cache.zip"}
"""The file that holds the code."""

COMPILE = "torch.compile"
"""The one entry of the key's part "options" of a bundle, so that no package has its key."""

LEFT_OUT = (
    "It is a JIT-cache bundle, which holds pickles: they run code while they are read. "
    "allow_jit_cache=True takes bundles from whom you trust so far."
)
"""Why a bundle doesn't serve where nobody asked for bundles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings:
    """How `torch.compile` is called, by the build and by whoever is to hit what it left.

    Attributes:
        dynamic: extents may differ from call to call.
        options: Inductor's, by dotted name.
    """

    dynamic: bool
    options: dict[str, Any]

    def __post_init__(self) -> None:
        if type(self.dynamic) is not bool or not isinstance(self.options, dict):
            raise ValueError(f"{COMPILE}: dynamic isn't true or false, or options aren't an object")

    def to_part(self) -> dict[str, Any]:
        """The value of the key's part "options"."""
        return {COMPILE: asdict(self)}

    @classmethod
    def of(cls, parts: Iterable[Part]) -> CompileSettings:
        """Those that a bundle's key has; a ValueError where it has none."""
        value = next((p.value for p in parts if p.name == "options"), None)
        if not isinstance(value, Mapping) or set(value) != {COMPILE}:
            raise ValueError(f"the key's part 'options' doesn't say how {COMPILE} is called")
        return cls(**checked_fields(cls, value[COMPILE], COMPILE))


def check_backend(
    backend: str,
    parts: Iterable[Part],
    package: FileRecord,
    library: FileRecord | None,
    packed: Packed | None,
) -> None:
    """Refuse with a ValueError what isn't an artifact of that backend."""
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")
    if package.name != PACKAGES[backend]:
        raise ValueError(f"its package is called {package.name!r}, not {PACKAGES[backend]!r}")
    if backend == INDUCTOR_CACHE:
        CompileSettings.of(parts)
        if library is not None or packed is not None:
            raise ValueError("a bundle of caches has neither one library nor packed constants")
        return
    options = next((p.value for p in parts if p.name == "options"), None)
    if library is None or (isinstance(options, Mapping) and COMPILE in options):
        raise ValueError("an artifact compiled ahead of time has a library, and no torch.compile")
