"""The host compiler is found or missed clearly, and its wrapper hides where it ran."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aotbuild.build.host import find_toolchain, write_compiler_wrapper
from aotbuild.errors import ToolchainError

SOURCE = 'extern "C" const char* where() { return __FILE__; }\n'


def test_find_toolchain_names_the_package_to_install_when_there_is_no_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ToolchainError, match=r"No C\+\+ compiler.*apt-get install g\+\+"):
        find_toolchain()


def test_find_toolchain_tells_versions_when_there_is_one() -> None:
    toolchain = find_toolchain()
    assert toolchain.to_json().keys() == {"compiler", "linker"}
    assert all(any(c.isdigit() for c in v) for v in toolchain.to_json().values())


def test_find_toolchain_says_so_when_the_program_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ToolchainError, match="doesn't answer"):
        find_toolchain()


def test_wrapper_makes_the_same_library_when_source_and_folder_are_called_otherwise(
    tmp_path: Path,
) -> None:
    libraries = []
    for name in ("one", "another/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        source = folder / f"{len(name)}.cpp"
        source.write_text(SOURCE)
        wrapper = write_compiler_wrapper(
            find_toolchain(), folder / "bin", march="x86-64-v2", prefix_maps={str(folder): "build"}
        )
        library = folder / "out.so"
        subprocess.run([wrapper, "-shared", "-fPIC", source, "-o", library], check=True)
        libraries.append(library.read_bytes())
    assert libraries[0] == libraries[1]
    assert b"model.cpp" in libraries[0]
    assert str(tmp_path).encode() not in libraries[0]


def test_wrapper_overrules_an_earlier_march_when_it_names_one(tmp_path: Path) -> None:
    source = tmp_path / "march.cpp"
    source.write_text("#ifdef __AVX512F__\n#error AVX-512\n#endif\n")
    wrapper = write_compiler_wrapper(
        find_toolchain(), tmp_path / "bin", march="x86-64-v2", prefix_maps={}
    )
    command = [wrapper, "-march=x86-64-v4", "-c", source, "-o", tmp_path / "march.o"]
    assert subprocess.run(command).returncode == 0
