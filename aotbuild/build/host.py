"""The host compiler: found, named for the key, and wrapped so that its output holds no paths."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aotbuild.errors import ToolchainError

LINK_FLAGS = ("-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack")
"""No symbol table, no build id, no executable stack (dlopen refuses one on hardened systems)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The C++ compiler and linker that make the `.so`.

    Attributes:
        compiler: path of the C++ compiler.
        compiler_version: first line of its `--version`.
        linker_version: the same of the linker it calls.
    """

    compiler: Path
    compiler_version: str
    linker_version: str

    def to_json(self) -> dict[str, str]:
        """What of it decides an artifact's bytes: the versions, not the path."""
        return {"compiler": self.compiler_version, "linker": self.linker_version}


def find_toolchain() -> Toolchain:
    """The C++ compiler named by `$CXX`, else g++.

    Raises:
        ToolchainError: none is there, or it doesn't answer.
    """
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if found is None:
        raise ToolchainError(
            f"No C++ compiler: {name!r} is not on the PATH, and a build for any target needs one. "
            "Install g++ (`apt-get install g++`), or name yours in $CXX. Loading artifacts needs "
            "none."
        )
    compiler = Path(found)
    linker = _ask(compiler, "-print-prog-name=ld")
    return Toolchain(
        compiler=compiler,
        compiler_version=_ask(compiler, "--version"),
        linker_version=_ask(Path(linker), "--version"),
    )


def _ask(program: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError) as e:
        raise ToolchainError(f"{program} doesn't answer to {' '.join(arguments)}: {e}.") from e


def write_compiler_wrapper(
    toolchain: Toolchain,
    folder: Path,
    *,
    march: str | None,
    prefix_maps: dict[str, str],
    headers: Sequence[Path] = (),
) -> Path:
    """A `g++` below `folder` that calls the real one with flags that make its output reproducible.

    Inductor offers no place for further flags, and its own come first, so the last word is had by
    standing in for the compiler. `__FILE__` in torch's headers would otherwise put the build
    machine's paths into the `.so`, and torch 2.11 and 2.12 know no option for `-march`.

    Args:
        march: x86-64 level that replaces any other; None leaves the compiler's choice.
        prefix_maps: path -> the name that stands for it in the output.
        headers: included before any other, in this order.
    """
    flags = ["-g0", *LINK_FLAGS]
    flags += [f"-ffile-prefix-map={old}={new}" for old, new in prefix_maps.items()]
    if march is not None:
        flags.append(f"-march={march}")
    folder.mkdir(parents=True, exist_ok=True)
    # Inductor tells gcc from clang by the program's name.
    wrapper = folder / ("clang++" if "clang" in toolchain.compiler.name else "g++")
    compiler = shlex.quote(str(toolchain.compiler))
    sources = shlex.join([word for header in headers for word in ("-include", str(header))])
    text = _WRAPPER.format(compiler=compiler, flags=shlex.join(flags), sources=sources)
    wrapper.write_text(text)
    wrapper.chmod(0o755)
    return wrapper


# Inductor names its sources after a hash that covers paths; `__FILE__` would carry that name along.
_WRAPPER = """#!/bin/sh
for word in "$@"; do
    case $word in
    *.cpp) exec {compiler} "$@" {flags} {sources} "-ffile-prefix-map=$word=model.cpp" ;;
    esac
done
exec {compiler} "$@" {flags}
"""


def default_prefix_maps(torch_folder: Path, cache: Path) -> dict[str, str]:
    """The folders whose paths would show in a `.so`: torch's headers, Python's, the build's own."""
    return {
        str(cache): "build",
        str(torch_folder): "torch",
        sysconfig.get_paths()["include"]: "python",
    }
