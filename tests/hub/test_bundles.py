"""JIT-cache bundles stay where they are, unless somebody asks for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from artifacts import CPU, stage, stage_bundle
from hub_state import SmallHub

from aotbuild.cache.artifact import Entry
from aotbuild.cache.lockfile import read_lock
from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.probe import cpu_level

NAME = "org/tiny-aot"
RECIPE = {"name": "tiny", "dtype": "fp32", "call": {"resolution": "128x128", "batch": 1}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One artifact compiled ahead of time, of the UNet, and a bundle, of the VAE."""
    found = Store(tmp_path / "store")
    for make, component in ((stage, "unet"), (stage_bundle, "vae.decode")):
        here = replace(CPU, arch=cpu_level(), torch=torch.__version__)
        changes = {"recipe": RECIPE, "target": here}
        with found.staging() as root:
            found.add(make(root, component=component, **changes))
    return found


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> tuple[str, str]:
    assert main([*map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def components(store: Store) -> list[str]:
    return [e.manifest.component for e in store.entries() if isinstance(e, Entry)]


def test_push_leaves_bundles_out_and_says_so(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = said(capsys, 0, "push", NAME, "--all", "--store", store.root)
    assert "1 JIT-cache bundles, which hold pickles, are left out; --with-jit-cache" in err
    assert "NAME has 1 artifacts".replace("NAME", NAME) in out
    assert not [
        f
        for f in small_hub.repos[NAME].commits[small_hub.repos[NAME].head]
        if f.endswith("jit-cache.zip")
    ]


def test_push_is_refused_when_only_bundles_are_named(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("push", NAME, "--component", "vae", "--store", store.root)
    _, err = said(capsys, 2, *arguments)
    assert "nothing else: type --with-jit-cache too" in err
    assert small_hub.repos == {}
    assert "jit-cache.zip" not in said(capsys, 0, *arguments, "--with-jit-cache")[1]


def test_bundle_is_pulled_and_locked_when_asked_for(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, 0, "push", NAME, "--all", "--with-jit-cache", "--store", store.root)
    commit = small_hub.repos[NAME].head
    card = small_hub.repos[NAME].commits[commit]["README.md"].decode()
    assert "fp32 jit-cache" in card

    for more, expected in (((), ["unet"]), (("--with-jit-cache",), ["unet", "vae.decode"])):
        there = Store(tmp_path / f"there{len(more)}")
        small_hub.log.clear()
        said(capsys, 0, "pull", NAME, "--revision", commit, "--store", there.root, *more)
        assert components(there) == expected
        assert any("jit-cache" in f for f in small_hub.fetched()) is bool(more)
        lockfile = tmp_path / f"{len(more)}.lock"
        said(capsys, 0, "lock", NAME, "--out", lockfile, *more)
        assert [i.component for i in read_lock(lockfile).items] == expected
        prefetched = Store(tmp_path / f"prefetched{len(more)}")
        said(capsys, 0, "prefetch", lockfile, "--store", prefetched.root, *more)
        assert components(prefetched) == expected


def test_bundle_is_told_apart_by_what_lists_it(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle,) = (e.manifest for e in store.entries() if e.manifest.library is None)
    where = ("--store", store.root)
    assert "float32 jit-cache" in said(capsys, 0, "list", *where)[0]
    listed = json.loads(said(capsys, 0, "list", "--json", *where)[0])["artifacts"]
    assert [a["backend"] for a in listed] == ["aot", "inductor-cache"]
    assert "inductor-cache" in said(capsys, 0, "show", bundle.key, *where)[0]
    lookup = said(capsys, 0, "lookup", "tiny", "--gpu", "cpu", *where)[0]
    assert "fp32 jit-cache" in lookup
    assert "Nothing for vae.decode. To build it" in lookup
    document = json.loads(said(capsys, 0, "doctor", "--json", *where)[0])
    judged: dict[str, Any] = {a["backend"]: a for a in document["artifacts"]}
    assert any("allow_jit_cache=True" in r for r in judged["inductor-cache"]["reasons"])
    assert not any("allow_jit_cache" in r for r in judged["aot"]["reasons"])
