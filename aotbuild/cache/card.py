"""A collection's README.md: a model card with the table of what is covered, and how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aotbuild.cache.backend import INDUCTOR_CACHE
from aotbuild.cache.collection import Index
from aotbuild.cache.item import Item

END = "<!-- aotbuild: what follows is yours; what is above is written anew by every push -->"
TAGS = ("aotbuild", "diffusers", "AOTInductor", "torch.export")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a card says of the checkpoint.

    Attributes:
        license: its identifier on the Hub, "openrail++"; None: what the card says stays.
        license_name: where `license` is "other".
        license_link: the same.
    """

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None


def render(
    index: Index, repository: str, facts: Facts, metadata: Mapping[str, Any], old: str
) -> str:
    """The card.

    Args:
        metadata: of the card that is there, of which what we don't write stays.
        old: its text, of which what follows the marker stays.
    """
    rest = old.partition(END)[2].strip("\n")
    lines = [
        "---",
        *_yaml(_metadata(index, facts, metadata)),
        "---",
        "",
        f"# {repository}",
        "",
        "Components of diffusers pipelines, compiled ahead of time by "
        "[aotbuild](https://pypi.org/project/aotbuild). They hold code, not weights, unless "
        "the table says so, and serve every fine-tune of the same architecture.",
        "",
        "## Load",
        "",
        "```python",
        "import aotbuild",
        "",
        f'loaded = aotbuild.load(pipe, "{repository}", revision="<commit>")',
        "print(loaded.report())",
        "```",
        "",
        "`revision` is a whole commit: an artifact is native code, which runs with the rights of "
        "your process. Only what serves your pipeline on your machine is downloaded. "
        f"`aotbuild lookup RECIPE --gpu GPU --from {repository}` says what is covered, "
        f"`aotbuild lock {repository}` pins it.",
        "",
        "## Covered",
        "",
        *table(index.items),
        "",
        END,
    ]
    return "\n".join([*lines, *(["", rest] if rest else [])]) + "\n"


def table(items: Iterable[Item]) -> list[str]:
    """A row per artifact, in Markdown."""
    header = ("recipe", "component", "resolution", "batch", "variant", "precision", "target",
              "torch", "verified on", "size", "key")  # fmt: skip
    rows = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return [*rows, *("| " + " | ".join(map(_cell, _row(i))) + " |" for i in items)]


def _cell(text: str) -> str:
    """What an index says, as text: no markup, and no end of a cell."""
    return re.sub(r"([|<>\[\]])", r"\\\1", text)


def verified_on(item: Item) -> tuple[str, ...]:
    """The architectures that records say it passed on; sorted."""
    return tuple(sorted({r.target.arch for r in item.records if r.passed}))


def precision(item: Item) -> str:
    """ "bf16", "bf16 int8dq", "bf16 with weights", "bf16 jit-cache"."""
    words = [item.covers.dtype or item.precision]
    words += ["jit-cache"] if item.backend == INDUCTOR_CACHE else []
    words += [q] if (q := item.covers.quantization) not in (None, "none") else []
    return " ".join([*words, *(["with weights"] if item.packed else [])])


def _row(item: Item) -> tuple[str, ...]:
    c = item.covers
    return (
        c.recipe or "",
        item.component,
        c.resolution or next(item.signature.sizes(), ""),
        "" if c.batch is None else str(c.batch),
        c.variant or "",
        precision(item),
        item.target.arch,
        item.target.torch,
        ", ".join(verified_on(item)) or "nowhere yet",
        f"{item.bytes / 1e6:.1f} MB",
        f"`{item.key[:12]}`",
    )


def _metadata(index: Index, facts: Facts, old: Mapping[str, Any]) -> dict[str, Any]:
    bases = {c for i in index.items if (c := i.covers.checkpoint)}
    ours = {
        "license": facts.license,
        "license_name": facts.license_name,
        "license_link": facts.license_link,
        "library_name": "aotbuild",
        "base_model": sorted(bases) or None,
    }
    tags = [*TAGS, *sorted({i.target.arch for i in index.items})]
    kept = [t for t in old.get("tags") or [] if isinstance(t, str) and t not in tags]
    written = {n: v for n, v in ours.items() if v is not None}
    return {**old, **written, "tags": tags + kept}


def _yaml(metadata: Mapping[str, Any]) -> list[str]:
    """A document of YAML's simplest kind: each value as JSON, which YAML contains."""
    return [f"{n}: {json.dumps(v, ensure_ascii=False)}" for n, v in sorted(metadata.items())]
