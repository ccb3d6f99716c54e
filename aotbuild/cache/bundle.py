"""`jit-cache.zip`: caches of Inductor and Triton as one archive, written, checked, and unpacked.

    inductor/<folders and files as below Inductor's cache folder>
    triton/<the same of Triton's>

What in it is of use, and where a process has its caches, `loaders.jit` knows.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aotbuild.cache.backend import INDUCTOR_CACHE, PACKAGES
from aotbuild.cache.library import BROKEN, open_archive, read_member
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import IntegrityError, LoadError

BUNDLE = PACKAGES[INDUCTOR_CACHE]
ROOTS = ("inductor", "triton")
LARGEST_BUNDLE_BYTES = 4 << 30
"""Far above what the largest model's caches take: SD 1.5's UNet needs 20 MB."""

_NAME = re.compile(r"(inductor|triton)(/(?!\.\.?(/|$))[\w.+=-]+)+", re.ASCII)
_TIME = (1980, 1, 1, 0, 0, 0)


def write_bundle(out: Path, files: Mapping[str, Path]) -> None:
    """Put `files`, by name in the archive, into `out`: sorted, uncompressed, without times."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, date_time=_TIME)
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, files[name].read_bytes())


@contextmanager
def open_bundle(folder: Path, manifest: Manifest) -> Iterator[zipfile.ZipFile]:
    """The artifact's bundle, hashed and its members checked, through one descriptor.

    Raises:
        IntegrityError: another digest, not a zip, or a member that has no business in it.
    """
    record = manifest.package
    with open_archive(folder, record) as archive:
        check_bundle(archive.infolist(), record.bytes, folder / record.name)
        yield archive


def check_bundle(members: list[zipfile.ZipInfo], size_bytes: int, where: Path) -> None:
    """Refuse with an IntegrityError a member that leads out of its folder, or isn't a plain file.

    `size_bytes` is the archive's, which its members together can't exceed, being uncompressed.
    """
    if size_bytes > LARGEST_BUNDLE_BYTES:
        raise IntegrityError(
            f"{where} has {size_bytes} bytes, more than any bundle ({LARGEST_BUNDLE_BYTES})."
        )
    seen: set[str] = set()
    for member in members:
        fault = _fault(member)
        if fault is None and member.filename.lower() in seen:
            fault = "is there twice"
        if fault is not None:
            raise IntegrityError(f"{where}: member {member.orig_filename!r} {fault}. {BROKEN}.")
        seen.add(member.filename.lower())
    if sum(m.file_size for m in members) > size_bytes:
        raise IntegrityError(f"{where}: its members are larger than itself. {BROKEN}.")


def _fault(member: zipfile.ZipInfo) -> str | None:
    if not _NAME.fullmatch(member.orig_filename):
        return "isn't named as a file below inductor/ or triton/, in plain letters"
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        return "is a link or another special file"
    if member.flag_bits & 0x1:
        return "is encrypted"
    if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
        return "is compressed, which bundles never are"
    return None


def install(archive: zipfile.ZipFile, roots: Mapping[str, Path], where: Path) -> tuple[int, int]:
    """Put the members of a checked bundle below `roots`, by name; how many are new, how many were.

    What is there already stays, whoever wrote it. Each file appears whole or not at all.

    Raises:
        IntegrityError: a member doesn't unpack.
        LoadError: a cache folder can't be written.
    """
    new = old = 0
    for member in archive.infolist():
        root, _, rest = member.filename.partition("/")
        path = roots[root] / rest
        if os.path.lexists(path):
            old += 1
            continue
        data = read_member(archive, member.filename, where)
        try:
            new += _add(path, data)
        except OSError as e:
            raise LoadError(
                f"The cache folder {roots[root]} can't be written: {e.strerror or e}. Name another "
                "by TORCHINDUCTOR_CACHE_DIR (or TRITON_CACHE_DIR)."
            ) from e
    return new, old


def _add(path: Path, data: bytes) -> bool:
    """Write `path` unless it is there by now; whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, own = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(data)
        os.link(own, path)
    except FileExistsError:
        return False
    finally:
        Path(own).unlink()
    return True
