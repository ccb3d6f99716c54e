"""A thousand flipped bytes, a thousand refusals, and no native code loaded."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import Tiny

import aotbuild
from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store
from aotbuild.errors import AotbuildError

FLIPS = 1000


@pytest.fixture
def copy_of_decoder(tiny: Tiny, tmp_path: Path, pipeline: Any) -> tuple[Path, list[Path]]:
    """A store that holds the VAE decoder alone, loaded once so that its library is extracted."""
    store = tmp_path / "store"
    (entry,) = (
        e
        for e in Store(tiny.store).entries()
        if isinstance(e, Entry) and e.manifest.component == "vae.decode"
    )
    shutil.copytree(entry.folder, store / entry.manifest.folder)
    aotbuild.load(SimpleNamespace(vae=pipeline.vae), store, store=store).restore()
    folder = store / entry.manifest.folder
    (library,) = (store / "libraries").glob("*.so")
    return store, [folder / "package.pt2", folder / "manifest.json", library]


def test_every_flipped_byte_is_refused_before_native_code_is_loaded(
    copy_of_decoder: tuple[Path, list[Path]], pipeline: Any
) -> None:
    store, files = copy_of_decoder
    chance = random.Random(0)
    shim = SimpleNamespace(vae=pipeline.vae)
    refused = 0
    for number in range(FLIPS):
        path = files[number % len(files)]
        at, bit = chance.randrange(path.stat().st_size), 1 << chance.randrange(8)
        mapped = _mapped_libraries()
        path.chmod(0o644)
        _flip(path, at, bit)
        try:
            aotbuild.load(shim, store, store=store, fallback="error")
        except AotbuildError:
            refused += 1
        assert _mapped_libraries() == mapped
        _flip(path, at, bit)
    assert refused == FLIPS
    aotbuild.load(shim, store, store=store, fallback="error").restore()


def _flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ bit]))
        file.flush()
        os.fsync(file.fileno())


def _mapped_libraries() -> set[str]:
    """Inodes of all that is mapped executable in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if " r-xp " in line}
