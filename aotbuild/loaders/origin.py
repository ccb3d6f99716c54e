"""Whose weights packed constants are, against what the user says that they must be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from aotbuild.cache.files import Packed
from aotbuild.cache.weight_files import find_weights
from aotbuild.errors import LoadError, UsageError
from aotbuild.loaders.paths import is_local, local_path

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The checkpoint that was asked for: a commit of a Hub repository, or a digest of files."""

    checkpoint: str
    revision: str | None = None
    digest: str | None = None

    def reason(self, packed: Packed) -> str | None:
        """Why `packed` isn't of this checkpoint; None where it is."""
        if self.digest is not None:
            same = packed.digest == self.digest
        else:
            same = (packed.checkpoint, packed.revision) == (self.checkpoint, self.revision)
        return None if same else f"Its constants are of {spelled(packed)}, not of {self}."

    def __str__(self) -> str:
        if self.digest is not None:
            return f"{self.checkpoint} (digest {self.digest[:12]})"
        return f"{self.checkpoint}@{self.revision}"


def check_checkpoint(checkpoint: object) -> Path | tuple[str, str]:
    """The folder that `checkpoint` is, or (repository, commit): its form, before any work.

    Raises:
        UsageError: it is neither, or there is no such folder.
    """
    spelling = "write 'ORGANISATION/NAME@COMMIT' with all 40 digits, or './FOLDER' for a local one"
    if not is_local(checkpoint):
        found = _REPOSITORY.fullmatch(checkpoint) if isinstance(checkpoint, str) else None
        if found is None:
            raise UsageError(f"checkpoint={checkpoint!r}: {spelling}.")
        return found[1], found[2]
    folder = local_path("checkpoint", checkpoint, error=UsageError)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "isn't there"
        raise UsageError(
            f"checkpoint={str(checkpoint)!r}: {folder} {what}; {spelling}: a diffusers folder, "
            "which holds one of weights for each component."
        )
    return folder


def origin(checkpoint: str | PathLike[str], component: str) -> Origin:
    """What `checkpoint` says: a diffusers folder, whose weight files are hashed, or "REPO@COMMIT".

    Raises:
        UsageError: a folder without weights of `component`, or no full commit.
    """
    found = check_checkpoint(checkpoint)
    if isinstance(found, Path):
        return Origin(checkpoint=str(found), digest=find_weights(found, component).digest())
    return Origin(checkpoint=found[0], revision=found[1])


def check_one_origin(component: str, packed: Iterable[Packed]) -> None:
    """Refuse constants of several checkpoints, where nobody said which.

    Raises:
        LoadError: naming them.
    """
    found = {p.digest: p for p in packed}
    if len(found) > 1:
        named = ", ".join(sorted(map(spelled, found.values())))
        raise LoadError(
            f"{component}: the source has packed constants of {len(found)} checkpoints, {named}. "
            "Say which with checkpoint='ORGANISATION/NAME@COMMIT' or checkpoint='./FOLDER'."
        )


def spelled(packed: Packed) -> str:
    """The checkpoint of packed constants, for people."""
    if packed.checkpoint is None:
        return f"a folder with digest {packed.digest[:12]}"
    return f"{packed.checkpoint}@{packed.revision}"
