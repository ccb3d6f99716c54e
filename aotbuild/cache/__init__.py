"""Artifacts as data and as files: key, signature, manifest, match, store.

Knows no torch (`loaders` does).
"""

from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.match import ModuleFacts
from aotbuild.cache.signature import Signature, TensorSpec
from aotbuild.cache.store import Store

__all__ = ["Broken", "Entry", "Manifest", "ModuleFacts", "Signature", "Store", "TensorSpec"]
