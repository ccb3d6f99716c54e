"""Packages for GPUs that aren't there, compiled once a session, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("compile_across.py")


def compile_unit(unit: str, gpu: str, folder: Path, *more: str) -> dict[str, Any]:
    """What `compile_across.py` saw, and under "library" where the `.so` lies."""
    folder.mkdir()
    command = [sys.executable, str(SCRIPT), unit, gpu, str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "library": folder / "model.so"}


@pytest.fixture(scope="session")
def built_across(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], dict[str, Any]]:
    """Compile a unit of `tiny` for a GPU, or answer with what was compiled before."""
    root, made = tmp_path_factory.mktemp("across"), {}

    def build(unit: str, gpu: str) -> dict[str, Any]:
        if (unit, gpu) not in made:
            made[unit, gpu] = compile_unit(unit, gpu, root / f"{unit}-{gpu}")
        return made[unit, gpu]

    return build


@pytest.fixture
def compile_across() -> Callable[..., dict[str, Any]]:
    """Compile a unit of `tiny` for a GPU in a folder of one's own."""
    return compile_unit


@pytest.fixture
def snapshot() -> Callable[[], dict[str, Any]]:
    """What a virtual GPU changes while it is there, as this process has it."""
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    taken: Callable[[], dict[str, Any]] = module.snapshot
    return taken
