"""An artifact as the reading commands show it: one JSON object, or a row of a table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from aotbuild.build.request import STAGES
from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.card import verified_on
from aotbuild.cache.item import Item
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.store import Store
from aotbuild.commands.output import human_bytes

HEADER = ("component", "calls", "weights", "target", "torch", "size", "verified", "key")


def to_json(store: Store, entry: Entry) -> dict[str, Any]:
    """The artifact object of `build --json`; what only a build knows is null."""
    manifest = entry.manifest
    return {
        "key": manifest.key,
        "backend": manifest.backend,
        "component": manifest.component,
        "path": str(entry.folder),
        "signature": manifest.signature.to_json(),
        "bytes": sum(f.bytes for f in manifest.files),
        "cached": True,
        "verified": is_verified(store, entry),
        "seconds": dict.fromkeys(STAGES),
    }


def item_json(item: Item, where: str, here: Collection[str]) -> dict[str, Any]:
    """The artifact object of one that a collection or lockfile tells of.

    Args:
        where: the source, as it is loaded.
        here: keys that the store has.
    """
    return {
        "key": item.key,
        "backend": item.backend,
        "component": item.component,
        "path": f"{where}/{item.folder}",
        "signature": item.signature.to_json(),
        "bytes": sum(f.bytes for f in item.code),
        "cached": item.key in here,
        "verified": bool(verified_on(item)),
        "seconds": dict.fromkeys(STAGES),
    }


def broken_json(broken: Broken) -> dict[str, str]:
    """A folder that can't be used, and why."""
    return {"path": str(broken.folder), "kind": broken.word, "reason": broken.reason}


def row(store: Store, entry: Entry) -> tuple[str, ...]:
    """One line under `HEADER`."""
    manifest = entry.manifest
    verified = "yes" if is_verified(store, entry) else "no"
    first = next(manifest.signature.sizes(), "no tensors")
    return (
        manifest.component,
        first,
        weights(manifest),
        manifest.target.arch,
        manifest.target.torch,
        human_bytes(sum(f.bytes for f in manifest.files)),
        verified,
        manifest.key[:12],
    )


def weights(manifest: Manifest) -> str:
    """What it binds: "float32", "float32 jit-cache", "bfloat16 int8 packed"."""
    words = [manifest.precision]
    words += ["jit-cache"] if manifest.backend == INDUCTOR_CACHE else []
    words += ["int8"] if any(c.rule.startswith("int8_rows/") for c in manifest.constants) else []
    return " ".join([*words, *(["packed"] if manifest.packed is not None else [])])


def is_verified(store: Store, entry: Entry) -> bool:
    """Whether some machine's record says that it passed."""
    return any(record.get("passed") is True for record in store.verifications(entry))
