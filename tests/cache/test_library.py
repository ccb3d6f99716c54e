from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import LIBRARY, STEM, make_manifest, members, sha256, write_zip

from aotbuild.cache import library
from aotbuild.cache.files import FileRecord
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import IntegrityError


def described(folder: Path, data: bytes = LIBRARY) -> Manifest:
    """A manifest whose package record is right for whatever `package.pt2` is in `folder`."""
    package = (folder / "package.pt2").read_bytes()
    return make_manifest(package=package, library=data)


def packed(folder: Path, contents: dict[str, bytes]) -> Manifest:
    write_zip(folder / "package.pt2", contents)
    return described(folder)


@pytest.mark.parametrize(
    "name",
    [
        "package/data/weights/weights.pkl",
        "package/data.pkl",
        "package/data/constants/c0.pt",
        "package/data/aotinductor/model/cabc.cpp",
        "package/data/aotinductor/model/kernel.cubin",
        "package/data/weights/w0",
        "package/data/sample_inputs/model.pt",
        "package/setup.py",
        "package/other.wrapper.so",
        "../escape.json",
        "package/../../escape.json",
        "/etc/escape.json",
        "package//twice.json",
        "./package.json",
        "package/folder/",
        "package\\..\\escape.json",
        "C:/escape.json",
        "package/byteorder.json/..",
    ],
)
def test_package_is_refused_when_a_member_has_no_business_in_it(name: str, tmp_path: Path) -> None:
    manifest = packed(tmp_path, {**members(), name: b"{}"})

    with pytest.raises(IntegrityError, match=r"member .* prune --broken"):
        library.read_library(tmp_path, manifest)


def symlink(info: zipfile.ZipInfo) -> None:
    info.external_attr = (stat.S_IFLNK | 0o777) << 16


def device(info: zipfile.ZipInfo) -> None:
    info.external_attr = (stat.S_IFCHR | 0o666) << 16


def bzip2(info: zipfile.ZipInfo) -> None:
    info.compress_type = zipfile.ZIP_BZIP2


@pytest.mark.parametrize(
    ("change", "message"),
    [(symlink, "is a link"), (device, "special file"), (bzip2, "compressed by a method")],
)
def test_package_is_refused_when_a_member_is_special(
    change: Callable[[zipfile.ZipInfo], None], message: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "package.pt2", "w") as archive:
        for name, data in members().items():
            archive.writestr(name, data)
        info = zipfile.ZipInfo("package/extra.json")
        change(info)
        archive.writestr(info, b"/etc/passwd")

    with pytest.raises(IntegrityError, match=message):
        library.read_library(tmp_path, described(tmp_path))


def test_package_is_refused_when_a_member_is_there_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.pt2", "w") as archive:
        for name, data in members().items():
            archive.writestr(name, data)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(f"{STEM}.so", b"x" * len(LIBRARY))

    with pytest.raises(IntegrityError, match="is there twice"):
        library.read_library(tmp_path, described(tmp_path))


def test_package_is_refused_when_a_member_is_encrypted(tmp_path: Path) -> None:
    write_zip(tmp_path / "package.pt2", members())
    data = bytearray((tmp_path / "package.pt2").read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "package.pt2").write_bytes(data)

    with pytest.raises(IntegrityError, match="is encrypted"):
        library.read_library(tmp_path, described(tmp_path))


def test_package_is_refused_when_it_has_no_library(tmp_path: Path) -> None:
    contents = {name: data for name, data in members().items() if not name.endswith(".so")}

    with pytest.raises(IntegrityError, match="isn't in it"):
        library.read_library(tmp_path, packed(tmp_path, contents))


@pytest.mark.parametrize("data", [LIBRARY[:-1], LIBRARY + b"x", b"", LIBRARY[:-1] + b"x"])
def test_package_is_refused_when_its_library_is_another(data: bytes, tmp_path: Path) -> None:
    manifest = packed(tmp_path, members(data))

    with pytest.raises(IntegrityError, match=r"isn't the library|the library in it has"):
        library.read_library(tmp_path, manifest)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x05\x06" + b"\xff" * 18])
def test_package_is_refused_when_it_is_no_archive(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "package.pt2").write_bytes(data)

    with pytest.raises(IntegrityError, match="isn't a zip archive"):
        library.read_library(tmp_path, described(tmp_path))


def test_package_gives_an_integrity_error_or_its_library_when_its_bytes_are_damaged(
    tmp_path: Path,
) -> None:
    """Even where the package's own record was made to fit the damage."""
    whole = write_zip(tmp_path / "package.pt2", members()).read_bytes()
    refused = 0
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        (tmp_path / "package.pt2").write_bytes(damaged)
        try:
            assert library.read_library(tmp_path, described(tmp_path)) == LIBRARY
        except IntegrityError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_library_is_read_when_it_is_stored_or_deflated(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.pt2", "w", method) as archive:
        for name, data in {**members(), f"{STEM}.json": b"{}"}.items():
            archive.writestr(name, data)

    assert library.read_library(tmp_path, described(tmp_path)) == LIBRARY


def test_library_is_read_when_torch_wrote_the_archive(tmp_path: Path) -> None:
    import torch

    writer: Any = torch._C.PyTorchFileWriter(str(tmp_path / "package.pt2"))
    for name, data in members().items():
        if name.rpartition("/")[2] not in ("byteorder", "version"):
            writer.write_record(name.removeprefix("package/"), data, len(data))
    writer.write_end_of_file()

    assert library.read_library(tmp_path, described(tmp_path)) == LIBRARY


@pytest.fixture
def answer(tmp_path: Path) -> bytes:
    """A real library, whose `answer()` is 42."""
    compiler = shutil.which("c++") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "a.c").write_text(
        '#ifdef __cplusplus\nextern "C"\n#endif\nint answer() { return 42; }'
    )
    command = [compiler, "-shared", "-fPIC", "-o", tmp_path / "a.so", tmp_path / "a.c"]
    subprocess.run(command, check=True, capture_output=True)
    return (tmp_path / "a.so").read_bytes()


def test_library_is_loaded_when_it_is_held_in_memory(answer: bytes) -> None:
    fd = library.in_memory(
        answer, FileRecord(name="a.so", sha256=sha256(answer), bytes=len(answer))
    )

    assert ctypes.CDLL(f"/proc/self/fd/{fd}").answer() == 42
    assert not os.get_inheritable(fd)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.close(fd)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_memory_is_refused_when_its_bytes_are_not_the_recorded(answer: bytes) -> None:
    wrong = FileRecord(name="a.so", sha256="0" * 64, bytes=len(answer))
    before = descriptors()

    with pytest.raises(IntegrityError, match="altered"):
        library.in_memory(answer, wrong)
    assert descriptors() == before


def test_no_descriptor_is_left_open_when_a_file_is_refused(tmp_path: Path) -> None:
    manifest = packed(tmp_path, members())
    wrong = replace(manifest, package=replace(manifest.package, sha256="0" * 64))
    os.mkfifo(tmp_path / "pipe")
    before = descriptors()

    for name in ("pipe", "nothing", "."):
        with pytest.raises(IntegrityError):
            library.open_file(tmp_path, name)
    with pytest.raises(IntegrityError):
        library.read_library(tmp_path, wrong)
    with pytest.raises(IntegrityError):
        library.open_checked(tmp_path / "package.pt2", manifest.library)
    assert descriptors() == before
