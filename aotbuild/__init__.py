"""Ahead-of-time compiled components for diffusers pipelines: built once, loaded in milliseconds."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aotbuild.errors import (
    AotbuildError,
    ArtifactError,
    BuildError,
    CompileError,
    ExportError,
    FormatError,
    HubError,
    IntegrityError,
    LoadError,
    ManifestError,
    NoArtifactError,
    RecipeError,
    ReleasedError,
    SignatureMismatch,
    SourceError,
    StoreError,
    TargetError,
    ToolchainError,
    UsageError,
    VerificationError,
)

if TYPE_CHECKING:
    from aotbuild.loaders.load import load
    from aotbuild.loaders.loaded import Loaded
    from aotbuild.loaders.stand_in import StandIn
    from aotbuild.loaders.standalone import load_component

__version__ = "0.1.0"

_LAZY = {
    "Loaded": "aotbuild.loaders.loaded",
    "StandIn": "aotbuild.loaders.stand_in",
    "load": "aotbuild.loaders.load",
    "load_component": "aotbuild.loaders.standalone",
}
"""What needs torch, and the module it comes from: imported at first use."""

__all__ = [
    "AotbuildError",
    "ArtifactError",
    "BuildError",
    "CompileError",
    "ExportError",
    "FormatError",
    "HubError",
    "IntegrityError",
    "LoadError",
    "Loaded",
    "ManifestError",
    "NoArtifactError",
    "RecipeError",
    "ReleasedError",
    "SignatureMismatch",
    "SourceError",
    "StandIn",
    "StoreError",
    "TargetError",
    "ToolchainError",
    "UsageError",
    "VerificationError",
    "__version__",
    "load",
    "load_component",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
