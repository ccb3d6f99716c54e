"""Whose licence a collection stands under, and which weights may not be passed on in public.

No lawyer: it reads the Hub's own metadata, and names of checkpoints that are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aotbuild.cache.card import Facts
from aotbuild.cache.hub import Hub, Repository
from aotbuild.cache.item import Item
from aotbuild.errors import SourceError, UsageError

_KNOWN = re.compile(
    r"black-forest-labs/FLUX\.[\w.-]*-dev|stabilityai/(stable-diffusion-3|sdxl-turbo|sd-turbo"
    r"|stable-video-diffusion|stable-cascade)[\w.-]*|DeepFloyd/IF-[\w.-]*",
    re.IGNORECASE,
)
"""Checkpoints for non-commercial or researchers' use. Source: the licences on their pages."""

_WORDS = re.compile(r"non-?commercial|(^|-)nc(-|$)|research|deepfloyd|community")
"""In a licence's identifier or name: it doesn't let everybody pass the weights on."""

_UNNAMED = ("", "other", "unknown", "none")
"""Identifiers that stand for a licence of its own: nobody knows here what it allows."""


def base_repositories(hub: Hub, items: Iterable[Item]) -> dict[str, Repository | None]:
    """What the Hub says of each base checkpoint; None of one that it hasn't got."""
    names = {c for i in items if (c := i.covers.checkpoint)}
    names |= {c for i in items if i.packed and (c := i.packed.checkpoint)}
    found: dict[str, Repository | None] = {}
    for name in sorted(names):
        try:
            found[name] = hub.look(name)
        except SourceError:
            found[name] = None
    return found


def facts_of(bases: dict[str, Repository | None], given: str | None) -> Facts:
    """The licence for the card: what was given, or that of the base checkpoints if all agree."""
    if given is not None:
        return Facts(license=given)
    names = ("license", "license_name", "license_link")
    cards = [b.card for b in bases.values() if b is not None]
    found = {tuple(v if isinstance(v := c.get(n), str) else None for n in names) for c in cards}
    return Facts(**dict(zip(names, found.pop(), strict=True))) if len(found) == 1 else Facts()


def check_weights(
    items: Iterable[Item], bases: dict[str, Repository | None], *, private: bool
) -> None:
    """Refuse weights in a public repository that may not be there.

    Raises:
        UsageError: naming the checkpoint and why.
    """
    if private:
        return
    for item in items:
        if item.packed is None:
            continue
        names = [n for n in (item.packed.checkpoint, item.covers.checkpoint) if n]
        why = (
            next((w for n in names if (w := _reason(n, bases.get(n)))), None)
            if names
            else "nobody knows what checkpoint they are of"
        )
        if why is not None:
            raise UsageError(
                f"{item.component} {item.key[:12]} carries weights, and {why}. Push it to a "
                "private repository (--private), or build it without --pack-weights: code alone "
                "is free of that."
            )


def _reason(name: str, base: Repository | None) -> str | None:
    """Why weights of the checkpoint can't be public; None where nothing speaks against it."""
    if _KNOWN.fullmatch(name):
        return f"the licence of {name} doesn't let everybody use or pass them on"
    if base is None:
        return f"the Hub says nothing of {name}'s licence"
    if base.gated or base.private:
        return f"{name} is {'gated' if base.gated else 'private'}"
    said = [base.card.get(n) for n in ("license", "license_name")]
    licences, names = map(_spelt, said)
    if not any(licences + names):
        return f"{name} names no licence"
    if not set(_UNNAMED).isdisjoint(licences) or any(map(_WORDS.search, licences + names)):
        return f"{name} is under {next(s for s in reversed(said) if s)}"
    return None


def _spelt(licence: object) -> list[str]:
    """ "cc-by-nc-4-0", however it was written; each, where there are several."""
    several = licence if isinstance(licence, list | tuple) else [licence or ""]
    return [re.sub(r"[\W_]+", "-", str(text)).strip("-").lower() for text in several]
