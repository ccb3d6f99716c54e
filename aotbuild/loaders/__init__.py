"""The loader: artifacts matched, bound and swapped into a pipeline; torch is all it needs."""

from aotbuild.loaders.load import load
from aotbuild.loaders.loaded import Loaded, Rejection
from aotbuild.loaders.unit import Unit

__all__ = ["Loaded", "Rejection", "Unit", "load"]
