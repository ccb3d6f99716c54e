"""What decides a key beside the cell: versions of packages and of the C++ compiler."""

from __future__ import annotations

from aotbuild import probe
from aotbuild.build.host import find_toolchain

PACKAGES = ("torch", "triton", "diffusers", "torchao")


def environment() -> dict[str, str | None]:
    """By name, as this machine has them.

    Raises:
        ToolchainError: there is no C++ compiler.
    """
    toolchain = find_toolchain().to_json()
    return {**probe.installed(PACKAGES), **toolchain, "aotbuild": probe.version_of("aotbuild")}
