"""What a source holds and what is wanted of it. Whether any of it fits is `load`'s to find out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path

from torch import nn

from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.store import Store
from aotbuild.errors import SourceError, UsageError
from aotbuild.loaders.loaded import Rejection


def local_source(source: str | PathLike[str], revision: str | None) -> Path:
    """The folder that `source` names.

    Raises:
        SourceError: it isn't a local folder.
    """
    text = source if isinstance(source, str) else None
    if text is not None and not text.startswith(("/", "./", "../", "~")):
        raise SourceError(
            f"{text!r} is read as a repository on the Hub, which this version can't load from yet. "
            f"For a folder write './{text}' or a pathlib.Path."
        )
    if revision is not None:
        raise SourceError(f"revision={revision!r} is for Hub repositories; {source} is a folder.")
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise SourceError(f"There is no folder {folder}. `aotbuild build` makes a store.")
    return folder


def listed(folder: Path) -> tuple[list[Entry], list[Rejection]]:
    """The artifacts below `folder`, and those that can't be used.

    Raises:
        SourceError: there are none at all.
    """
    found = list(Store(folder).entries())
    if not found:
        raise SourceError(
            f"{folder} holds no artifacts; `aotbuild build RECIPE --store {folder}` makes some."
        )
    broken = [
        Rejection(
            unit=b.folder.parent.parent.name, key=b.folder.name, slug="broken", reasons=(b.reason,)
        )
        for b in found
        if isinstance(b, Broken)
    ]
    return [e for e in found if isinstance(e, Entry)], broken


def wanted_units(
    pipeline: object, labels: set[str], components: Sequence[str] | None
) -> dict[str, set[str]]:
    """Component name -> the unit labels that are wanted of it.

    Raises:
        UsageError: the pipeline has no module of a name in `components`.
    """
    modules = {
        name: isinstance(getattr(pipeline, name, None), nn.Module)
        for name in {w.partition(".")[0] for w in (*labels, *(components or ()))}
    }
    asked: Iterable[str] = components if components is not None else sorted(labels)
    wanted: dict[str, set[str]] = {}
    for label in asked:
        name = label.partition(".")[0]
        if not modules[name]:
            if components is not None:
                raise UsageError(f"components: the pipeline has no module {name!r}.")
            continue
        exact = {x for x in labels if x == label or x.startswith(f"{label}.")}
        wanted.setdefault(name, set()).update(exact or {label})
    return wanted


def rejection(entry: Entry, reasons: Iterable[str]) -> Rejection:
    """`entry`, turned down for `reasons`."""
    manifest = entry.manifest
    return Rejection(
        unit=manifest.component,
        key=manifest.key[:12],
        slug=manifest.signature.slug,
        reasons=tuple(reasons),
    )
