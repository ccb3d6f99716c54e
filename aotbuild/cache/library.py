"""Verified access to a package and to the `.so` inside it. Where they lie is `store`'s concern."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from aotbuild.cache.files import FileRecord
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import IntegrityError

BROKEN = "`aotbuild prune --broken` removes what can't be used; then build or pull it again"

MARKERS = frozenset(
    {"version", "byteorder", "archive_format", "archive_version", "serialization_id"}
)
"""Files that hold a word each. Source: torch/export/pt2_archive/constants.py."""

_LARGEST_TEXT_BYTES = 64 << 20
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""What `zipfile` raises on archives that aren't well formed, are encrypted, or compressed oddly."""


def open_file(folder: Path, name: str) -> int:
    """A descriptor of the regular file `name` in `folder`, neither of them a symlink.

    Raises:
        IntegrityError: it isn't there, or isn't a regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        parent = os.open(folder, flags | os.O_DIRECTORY)
        try:
            fd = os.open(name, flags | os.O_NONBLOCK, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as e:
        raise IntegrityError(f"{folder / name} can't be opened: {e.strerror}. {BROKEN}.") from e
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise IntegrityError(f"{folder / name} isn't a regular file. {BROKEN}.")
    return fd


def digest_of(fd: int) -> tuple[str, int]:
    """(hex sha256, size in bytes) of all that `fd` reads, without moving its position."""
    sha, offset = hashlib.sha256(), 0
    while chunk := os.pread(fd, 1 << 20, offset):
        sha.update(chunk)
        offset += len(chunk)
    return sha.hexdigest(), offset


def check_digest(fd: int, record: FileRecord, where: Path) -> None:
    """Refuse with an IntegrityError unless `fd` reads exactly what was recorded."""
    found, size = digest_of(fd)
    if (found, size) != (record.sha256, record.bytes):
        raise IntegrityError(
            f"{where} was altered: {size} bytes with sha256 {found[:12]}, and the manifest says "
            f"{record.bytes} with {record.sha256[:12]}. {BROKEN}."
        )


@contextmanager
def open_package(folder: Path, manifest: Manifest) -> Iterator[zipfile.ZipFile]:
    """The artifact's package, hashed and its members checked, through one descriptor.

    Raises:
        IntegrityError: another digest, not a zip, or a member that has no business in it.
    """
    with open_archive(folder, manifest.package) as archive:
        check_members(archive.infolist(), library_of(manifest), folder / manifest.package.name)
        yield archive


@contextmanager
def open_archive(folder: Path, record: FileRecord) -> Iterator[zipfile.ZipFile]:
    """The zip archive that `record` is of, hashed; what is in it the caller checks.

    Raises:
        IntegrityError: another digest, or not a zip.
    """
    where = folder / record.name
    with os.fdopen(open_file(folder, record.name), "rb") as file:
        check_digest(file.fileno(), record, where)
        with archive_of(file, where) as archive:
            yield archive


@contextmanager
def archive_of(file: BinaryIO, where: Path) -> Iterator[zipfile.ZipFile]:
    """The zip archive that `file` is; an IntegrityError where it isn't one."""
    try:
        archive = zipfile.ZipFile(file)
    except (*_DAMAGE, OSError) as e:
        raise IntegrityError(f"{where} isn't a zip archive that reads: {e}. {BROKEN}.") from e
    with archive:
        yield archive


def check_members(members: list[zipfile.ZipInfo], library: FileRecord, where: Path) -> None:
    """Refuse with an IntegrityError whatever may not be in a package.

    Only the one library, JSON files and torch's markers may: no pickle, no path that leads out, no
    link, nothing twice, nothing encrypted.
    """
    seen: set[str] = set()
    for member in members:
        fault = _fault(member, library)
        if fault is None and member.filename.lower() in seen:
            fault = "is there twice"
        if fault is not None:
            raise IntegrityError(f"{where}: member {member.filename!r} {fault}. {BROKEN}.")
        seen.add(member.filename.lower())
    if library.name.lower() not in seen:
        raise IntegrityError(f"{where}: the library {library.name!r} isn't in it. {BROKEN}.")


def _fault(member: zipfile.ZipInfo, library: FileRecord) -> str | None:
    name, path = member.orig_filename, PurePosixPath(member.orig_filename)
    mode = member.external_attr >> 16
    if path.is_absolute() or ".." in path.parts or str(path) != name or set(name) & set("\\:\0"):
        return "has a name that leads out of the package, or isn't in its plain form"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is a link or another special file"
    if member.flag_bits & 0x1:
        return "is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed by a method that packages don't use"
    if path.suffix == ".so":
        known = (name, member.file_size) == (library.name, library.bytes)
        return None if known else "isn't the library that the manifest names"
    if path.suffix != ".json" and path.name not in MARKERS:
        return "is neither the library, JSON nor a marker; pickles and the like are never read"
    if member.file_size > _LARGEST_TEXT_BYTES:
        return f"is larger than {_LARGEST_TEXT_BYTES} bytes"
    return None


def read_member(archive: zipfile.ZipFile, name: str, where: Path) -> bytes:
    """The bytes of one member of a package whose members were checked.

    Raises:
        IntegrityError: no such member, or one that doesn't unpack.
    """
    try:
        return archive.read(name)
    except (*_DAMAGE, KeyError, OSError) as e:
        raise IntegrityError(f"{where}: member {name!r} doesn't read: {e}. {BROKEN}.") from e


def library_of(manifest: Manifest) -> FileRecord:
    """The record of the one `.so` in an artifact's package.

    Raises:
        IntegrityError: it is a JIT-cache bundle, which holds many and exports none.
    """
    if manifest.library is None:
        raise IntegrityError(f"{manifest.key[:12]} is a JIT-cache bundle, and has no one library.")
    return manifest.library


def read_library(folder: Path, manifest: Manifest) -> bytes:
    """The `.so` out of the verified package, with the digest that the manifest records.

    Raises:
        IntegrityError: the package, a member of it, or the library isn't what it must be.
    """
    record, where = library_of(manifest), folder / manifest.package.name
    with open_package(folder, manifest) as archive:
        data = read_member(archive, record.name, where)
    found = hashlib.sha256(data).hexdigest()
    if (found, len(data)) != (record.sha256, record.bytes):
        raise IntegrityError(
            f"{where}: the library in it has sha256 {found[:12]}, and the manifest says "
            f"{record.sha256[:12]}. {BROKEN}."
        )
    return data


def open_checked(path: Path, record: FileRecord) -> int:
    """A descriptor of the file at `path`, hashed through it; the caller closes it.

    Raises:
        IntegrityError: it isn't the recorded one.
    """
    fd = open_file(path.parent, path.name)
    try:
        check_digest(fd, record, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def in_memory(data: bytes, record: FileRecord) -> int:
    """A descriptor of an anonymous file that holds `data`, sealed, then hashed."""
    fd = os.memfd_create(record.sha256, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        check_digest(fd, record, Path(f"/proc/self/fd/{fd}"))
    except BaseException:
        os.close(fd)
        raise
    return fd
