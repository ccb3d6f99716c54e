"""Repacking: fixed bytes, nothing of the build machine, still a package that torch opens."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from aotbuild.build.package import read_library, repack
from aotbuild.errors import BuildError

STEM = "model/data/aotinductor/model/abc.wrapper"


def compile_library(folder: Path, source: str, *flags: str) -> bytes:
    path = folder / "source.cpp"
    path.write_text(source)
    out = folder / "source.so"
    subprocess.run(["g++", "-shared", "-fPIC", *flags, path, "-o", out], check=True)
    return out.read_bytes()


def write_raw(path: Path, members: dict[str, bytes], *, time: int = 1990) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (time, 1, 1, 0, 0, 0)), data)
    return path


def raw_members(library: bytes) -> dict[str, bytes]:
    return {
        "model/archive_format": b"pt2",
        f"{STEM}.cpp": b"// a source",
        f"{STEM}.so": library,
        f"{STEM}_metadata.json": b'{"b": 1, "a": 2}',
        "model/.data/serialization_id": b"random",
    }


@pytest.fixture
def library(tmp_path: Path) -> bytes:
    return compile_library(tmp_path, 'extern "C" int one() { return 1; }')


def test_repack_writes_the_same_bytes_when_order_times_and_ids_differ(
    tmp_path: Path, library: bytes
) -> None:
    members = raw_members(library)
    first = write_raw(tmp_path / "a.pt2", members)
    shuffled = dict(reversed(members.items())) | {"model/.data/serialization_id": b"other"}
    second = write_raw(tmp_path / "b.pt2", shuffled, time=2020)
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one = repack(first, tmp_path / "x" / "package.pt2")
    two = repack(second, tmp_path / "y" / "package.pt2")
    assert one.package == two.package
    with zipfile.ZipFile(tmp_path / "x" / "package.pt2") as archive:
        assert not [n for n in archive.namelist() if n.endswith(".cpp")]
        assert archive.read(one.library_record.name) == library


def test_repack_refuses_when_the_code_needs_the_proxy_executor(
    tmp_path: Path, library: bytes
) -> None:
    raw = write_raw(tmp_path / "a.pt2", {**raw_members(library), f"{STEM}.json": b"[]"})
    with pytest.raises(BuildError, match="proxy executor"):
        repack(raw, tmp_path / "package.pt2")


def test_repack_refuses_when_a_path_of_the_machine_is_in_the_library(tmp_path: Path) -> None:
    source = 'extern "C" const char* f() { return "/home/builder/secret/x.h"; }'
    raw = write_raw(tmp_path / "a.pt2", raw_members(compile_library(tmp_path, source)))
    with pytest.raises(BuildError, match=r"/home/builder/secret/x\.h"):
        repack(raw, tmp_path / "package.pt2", forbidden=("/home/builder",))


def test_repack_refuses_when_the_stack_is_executable(tmp_path: Path) -> None:
    library = compile_library(tmp_path, "int x;", "-Wl,-z,execstack")
    raw = write_raw(tmp_path / "a.pt2", raw_members(library))
    with pytest.raises(BuildError, match="executable stack"):
        repack(raw, tmp_path / "package.pt2")


def test_repack_refuses_when_there_is_no_library(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "a.pt2", {"model/version": b"1"})
    with pytest.raises(BuildError, match="0 libraries"):
        repack(raw, tmp_path / "package.pt2")


def test_read_library_tells_the_newest_symbols_it_needs(tmp_path: Path) -> None:
    source = '#include <cstdlib>\nextern "C" int f() { return std::rand(); }'
    found = read_library(compile_library(tmp_path, source))
    assert found.glibc is not None
    assert "libc.so.6" in found.needed
