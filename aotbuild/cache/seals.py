"""Ed25519 signatures over a collection's entries: who vouches for an artifact's bytes.

Each entry is signed for itself, so that a publisher vouches for what they pushed and for nothing
that others put beside it. Needs the package `cryptography`, and only where keys are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from aotbuild.cache.covers import Seal
from aotbuild.cache.item import Item
from aotbuild.canonical import canonical_bytes
from aotbuild.errors import IntegrityError, UsageError

DOMAIN = b"aotbuild collection entry, format 1\n"
"""What no signature for another purpose begins with."""


def statement(item: Item) -> bytes:
    """What is signed: the entry with the digest of every file, without records and seals.

    Verification records are added by whoever ran the artifact, later, and vouch for themselves.
    """
    document = item.to_json({})
    document["files"] = [f for f in document["files"] if not f["name"].startswith("verifications")]
    for name in ("records", "seals"):
        del document[name]
    return DOMAIN + canonical_bytes(document)


def read_private(path: Path) -> Any:
    """The private key in a PEM file, as `openssl genpkey -algorithm ed25519` writes it.

    Raises:
        UsageError: it isn't one, or is encrypted, or `cryptography` isn't installed.
    """
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as e:
        raise UsageError(f"{path} isn't a private key that can be read: {e}. {_HOW}") from e
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{path} isn't an Ed25519 key. {_HOW}")
    return key


def public_of(private: Any) -> str:
    """The public key of a private one, 64 hex digits."""
    found: bytes = private.public_key().public_bytes_raw()
    return found.hex()


def signed(item: Item, private: Any) -> Item:
    """The entry with this key's seal, in place of an older one of it."""
    public = public_of(private)
    seal = Seal(public=public, value=private.sign(statement(item)).hex())
    others = [s for s in item.seals if s.public != public]
    return replace(item, seals=tuple(sorted((*others, seal), key=lambda s: s.public)))


def trusted_keys(keys: str | PathLike[str] | Iterable[str | PathLike[str]]) -> frozenset[str]:
    """Public keys: each 64 hex digits, or the path of a PEM file; one alone, too.

    Raises:
        UsageError: one is neither, there is none, or `cryptography` isn't installed.
    """
    several = (keys,) if isinstance(keys, str | PathLike) else keys
    found = frozenset(_public(k) for k in several)
    if not found:
        raise UsageError("trusted_keys names no key, so that nothing could be trusted.")
    _library()
    return found


def distrust(item: Item, trusted: frozenset[str]) -> str | None:
    """Why none of the trusted keys vouches for the entry; None where one does."""
    ed25519, _ = _library()
    seals = {s.public: s for s in item.seals}
    if not seals:
        return "It isn't signed, and trusted keys were named."
    ours = [seals[p] for p in sorted(seals) if p in trusted]
    if not ours:
        known = ", ".join(p[:12] for p in sorted(seals))
        return f"It is signed by {known}, which isn't among the trusted keys."
    from cryptography.exceptions import InvalidSignature

    for seal in ours:
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(seal.public))
            key.verify(bytes.fromhex(seal.value), statement(item))
            return None
        except (InvalidSignature, ValueError):
            continue
    return f"The signature by {ours[0].public[:12]} isn't over this artifact."


def check_trusted(items: Iterable[Item], keys: Iterable[str | PathLike[str]]) -> None:
    """Refuse artifacts of which one isn't vouched for by any of the keys; no keys: no check.

    Raises:
        IntegrityError: naming it and why.
    """
    listed = list(keys)
    if not listed:
        return
    trusted = trusted_keys(listed)
    for item in items:
        reason = distrust(item, trusted)
        if reason is not None:
            raise IntegrityError(f"{item.component} {item.key[:12]}: {reason}")


def _public(key: str | PathLike[str]) -> str:
    if isinstance(key, str) and re.fullmatch(r"[0-9a-fA-F]{64}", key):
        return key.lower()
    ed25519, serialization = _library()
    try:
        found = serialization.load_pem_public_key(Path(key).expanduser().read_bytes())
    except (OSError, ValueError, TypeError) as e:
        raise UsageError(
            f"trusted key {key!r}: neither 64 hex digits nor the PEM file of a public key: {e}."
        ) from e
    if not isinstance(found, ed25519.Ed25519PublicKey):
        raise UsageError(f"trusted key {key!r} isn't an Ed25519 key.")
    raw: bytes = found.public_bytes_raw()
    return raw.hex()


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as e:
        raise UsageError(
            "Signatures need the package cryptography: `pip install 'aotbuild[sign]'`."
        ) from e
    return ed25519, serialization


_HOW = "`openssl genpkey -algorithm ed25519 -out key.pem` makes one."
