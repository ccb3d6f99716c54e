"""`package.pt2` as we keep it: the `.so` and its metadata, fixed order and times, no sources."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from aotbuild.cache.files import FileRecord
from aotbuild.errors import BuildError
from aotbuild.target import version_tuple

MODEL_FOLDER = "data/aotinductor/model"
MARKERS = {
    "archive_format": b"pt2",
    "archive_version": b"0",
    ".data/version": b"6\n",
    "byteorder": b"little",
    ".data/serialization_id": b"0" * 40,
}
"""The archive's own marker files, as torch.export.pt2_archive writes them."""

_PF_X = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What a `.so` says of itself.

    Attributes:
        glibc: highest GLIBC version among the symbols it needs, "2.34"; None: it needs none.
        glibcxx: the same for GLIBCXX.
        needed: the libraries it names.
    """

    glibc: str | None
    glibcxx: str | None
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A repacked package: its record, the `.so` inside with its record, and what that needs.

    A bundle of caches has many `.so`, so that `library_record` is None and `data` empty.
    """

    package: FileRecord
    library_record: FileRecord | None
    library: Library
    data: bytes


def repack(raw: Path, out: Path, *, forbidden: tuple[str, ...] = ()) -> Package:
    """Write `out` from AOTInductor's own `raw`, the same bytes for the same `.so`.

    Members are stored uncompressed, since deflate differs between zlib versions. The result stays a
    package that `torch._inductor.aoti_load_package` opens.

    Args:
        forbidden: paths of the build machine; one in the `.so` fails the build.

    Raises:
        BuildError: no `.so` or several, a path or an executable stack in it, or code that calls
            back into torch's proxy executor.
    """
    with zipfile.ZipFile(raw) as archive:
        names = archive.namelist()
        libraries = [n for n in names if n.endswith(".so")]
        if len(libraries) != 1:
            raise BuildError(f"{raw} holds {len(libraries)} libraries where one was expected.")
        library = archive.read(libraries[0])
        stem = libraries[0].removesuffix(".so")
        metadata = json.loads(archive.read(f"{stem}_metadata.json"))
        if f"{stem}.json" in names:
            operators = archive.read(f"{stem}.json").decode(errors="replace")[:400]
            raise BuildError(
                "The compiled code calls operators by torch's proxy executor, which the loader "
                f"doesn't run: {operators}."
            )
    _check_library(library, forbidden)
    root, base = out.stem, f"{MODEL_FOLDER}/model.wrapper"
    members = {f"{root}/{name}": data for name, data in MARKERS.items()}
    members[f"{root}/{base}.so"] = library
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"))
    members[f"{root}/{base}_metadata.json"] = text.encode()
    _write_zip(out, members)
    return Package(
        package=file_record(out.name, out.read_bytes()),
        library_record=file_record(f"{root}/{base}.so", library),
        library=read_library(library),
        data=library,
    )


def file_record(name: str, data: bytes) -> FileRecord:
    """Name, sha256 and size of `data`."""
    return FileRecord(name=name, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def read_library(data: bytes) -> Library:
    """What the ELF image `data` needs of the machine it is loaded on."""
    elf = ELFFile(BytesIO(data))
    versions: dict[str, list[str]] = {"GLIBC": [], "GLIBCXX": []}
    needed: list[str] = []
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, auxiliaries in section.iter_versions():
                for auxiliary in auxiliaries:
                    match = re.fullmatch(r"(GLIBC|GLIBCXX)_([\d.]+)", auxiliary.name)
                    if match:
                        versions[match[1]].append(match[2])
        if isinstance(section, DynamicSection):
            needed += [str(vars(tag)["needed"]) for tag in section.iter_tags("DT_NEEDED")]
    glibc, glibcxx = (max(v, key=version_tuple, default=None) for v in versions.values())
    return Library(glibc=glibc, glibcxx=glibcxx, needed=tuple(needed))


def differing_sections(first: bytes, second: bytes) -> Iterator[str]:
    """Names of the ELF sections that two libraries don't have in common, byte for byte."""
    left, right = (
        {s.name: s.data() for s in ELFFile(BytesIO(d)).iter_sections() if s.name}
        for d in (first, second)
    )
    for name in dict.fromkeys((*left, *right)):
        if left.get(name) != right.get(name):
            yield name


def _check_library(data: bytes, forbidden: tuple[str, ...]) -> None:
    for path in forbidden:
        at = data.find(path.encode())
        if at >= 0:
            text = data[at : at + 160].split(b"\0")[0].decode(errors="replace")
            raise BuildError(f"The compiled library holds a path of this machine: {text}.")
    for segment in ELFFile(BytesIO(data)).iter_segments("PT_GNU_STACK"):
        if segment["p_flags"] & _PF_X:
            raise BuildError("The compiled library asks for an executable stack.")


def _write_zip(out: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, data)
