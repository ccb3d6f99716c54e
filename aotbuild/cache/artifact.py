"""One artifact's folder: reading it, and checking that it is what its manifest says.

Where it lies, and how it came there, is left to `store`.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from aotbuild.cache.backend import PACKAGES
from aotbuild.cache.bundle import open_bundle
from aotbuild.cache.files import PACKED, FileRecord
from aotbuild.cache.library import BROKEN, open_checked, open_file, read_library
from aotbuild.cache.manifest import Manifest, ModuleIdentity
from aotbuild.canonical import checked_fields
from aotbuild.errors import ArtifactError, FormatError, IntegrityError, ManifestError

MANIFEST = "manifest.json"
VERIFICATIONS = "verifications"

_LARGEST_MANIFEST_BYTES = 64 << 20
_FULL, _MODULE = '"scope":"full"', '"module":{'
"""As canonical JSON spells them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An artifact whose manifest reads and whose listing is right; nothing of it is hashed yet."""

    folder: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Size of the package, its manifest, and its packed constants on disk."""
        files = sum(f.bytes for f in self.manifest.files)
        return files + len(self.manifest.to_bytes())


@dataclass(frozen=True, slots=True)
class Broken:
    """A folder among the artifacts that can't be used, and why.

    `word` is "other format" for what an older or newer aotbuild wrote, which nothing is wrong with.
    """

    folder: Path
    reason: str
    word: str = "broken"


def read_entry(folder: Path) -> Entry:
    """The artifact in `folder`, from its manifest and its listing alone.

    Raises:
        ManifestError: the manifest doesn't read, was altered, or is of another format.
        IntegrityError: a file too many or too few, a link, a file of another size.
    """
    found = _check_listing(folder)
    fd = open_file(folder, MANIFEST)
    with os.fdopen(fd, "rb") as file:
        data = file.read(_LARGEST_MANIFEST_BYTES + 1)
    if len(data) > _LARGEST_MANIFEST_BYTES:
        raise ManifestError(f"{folder / MANIFEST} is larger than any manifest. {BROKEN}.")
    manifest = Manifest.from_bytes(data, where=str(folder / MANIFEST))
    if manifest.package.name not in found:
        raise IntegrityError(f"{folder} holds no {manifest.package.name}. {BROKEN}.")
    if (PACKED in found) != (manifest.packed is not None):
        held = "holds" if PACKED in found else "lacks"
        raise IntegrityError(f"{folder} {held} {PACKED}, unlike its manifest. {BROKEN}.")
    for record in manifest.files:
        _check_size(folder, record)
    return Entry(folder, manifest)


def glimpse(folder: Path) -> ModuleIdentity | None:
    """What whole component the artifact in `folder` says it is of: to turn it down at a glance.

    Nothing of it is checked, and of thousands of constants none is parsed. None where it doesn't
    say, or is of a block.
    """
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        if _FULL not in text:
            return None
        document, _ = json.JSONDecoder().raw_decode(text, text.index(_MODULE) + len(_MODULE) - 1)
        return ModuleIdentity(**checked_fields(ModuleIdentity, document, "module"))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def read_or_broken(folder: Path) -> Entry | Broken:
    """As `read_entry`, with what is wrong as a value."""
    try:
        return read_entry(folder)
    except FormatError as e:
        return Broken(folder, str(e), "other format")
    except (ArtifactError, OSError) as e:
        return Broken(folder, str(e))


def verify_artifact(folder: Path) -> Entry:
    """The artifact in `folder` with every byte of it hashed: manifest, package, library inside,
    packed constants.

    Raises:
        ManifestError, IntegrityError: what differs from what the manifest says.
    """
    entry = read_entry(folder)
    if entry.manifest.library is None:
        with open_bundle(folder, entry.manifest):
            pass
    else:
        read_library(folder, entry.manifest)
    if entry.manifest.packed is not None:
        packed = entry.manifest.packed.file
        os.close(open_checked(folder / packed.name, packed))
    return entry


def _check_size(folder: Path, record: FileRecord) -> None:
    size = (folder / record.name).stat(follow_symlinks=False).st_size
    if size != record.bytes:
        raise IntegrityError(
            f"{folder / record.name} has {size} bytes, and the manifest says {record.bytes}. "
            f"{BROKEN}."
        )


def _check_listing(folder: Path) -> frozenset[str]:
    """The names in it, all known; regular files and one folder, and no link anywhere."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise IntegrityError(f"{folder} isn't a folder. {BROKEN}.")
        found = {e.name: e for e in os.scandir(folder)}
        records = list(os.scandir(folder / VERIFICATIONS)) if VERIFICATIONS in found else []
    except OSError as e:
        raise IntegrityError(f"{folder} can't be read: {e.strerror}. {BROKEN}.") from e
    for entry in (*found.values(), *records):
        if entry.is_symlink():
            raise IntegrityError(
                f"{entry.path} is a symbolic link, which artifacts never hold. {BROKEN}."
            )
    packages = set(PACKAGES.values())
    unknown = sorted(set(found) - {MANIFEST, *packages, PACKED, VERIFICATIONS})
    if unknown:
        raise IntegrityError(f"{folder} holds {unknown[0]!r}, which no artifact has. {BROKEN}.")
    if MANIFEST not in found:
        raise IntegrityError(f"{folder} holds no {MANIFEST}. {BROKEN}.")
    if len(packages & set(found)) > 1:
        raise IntegrityError(f"{folder} holds two packages, {' and '.join(packages)}. {BROKEN}.")
    return frozenset(found)
