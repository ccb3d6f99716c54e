from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotbuild.canonical import digest
from aotbuild.errors import NoArtifactError, SourceError
from aotbuild.loaders.source import listed

from . import nets
from .conftest import Kit


def elsewhere(kit: Kit, unit: str) -> Path:
    """A folder for a GPU, whose manifest nobody could read."""
    folder = kit.store.root / "artifacts" / unit / "sm_80" / "2x4-float32-0123456789ab"
    folder.mkdir(parents=True)
    return folder


def test_listed_reads_nothing_of_another_kind_of_device_when_there_is_something_for_this(
    kit: Kit,
) -> None:
    manifest = kit.net()
    folder = elsewhere(kit, manifest.component)
    entries, (rejection,), _ = listed(kit.store.root, lambda _: "cpu")
    assert [e.manifest.key for e in entries] == [manifest.key]
    assert (rejection.key, rejection.slug) == (folder.name, "sm_80")
    assert "another kind of device" in rejection.reasons[0]


def test_listed_reads_what_is_for_the_device_alone_when_it_is_another(kit: Kit) -> None:
    manifest = kit.net()
    elsewhere(kit, manifest.component)
    entries, rejections, _ = listed(kit.store.root, lambda _: "cuda")
    assert entries == []
    assert {r.slug for r in rejections} == {"broken", manifest.target.slug}


def test_listed_reads_nothing_of_a_unit_that_is_not_wanted(kit: Kit) -> None:
    manifest = kit.net()
    elsewhere(kit, "unet")
    entries, rejections, _ = listed(kit.store.root, {manifest.component: "cpu"}.get)
    assert [e.manifest.key for e in entries] == [manifest.key]
    assert rejections == []


def test_listed_reads_what_is_for_another_device_when_a_unit_has_nothing_else(kit: Kit) -> None:
    manifest = kit.net()
    elsewhere(kit, "unet")
    entries, rejections, _ = listed(kit.store.root, lambda _: "cpu")
    assert [e.manifest.key for e in entries] == [manifest.key]
    assert [r.slug for r in rejections] == ["broken"]


def test_listed_reads_nothing_of_another_architecture_but_what_it_is(kit: Kit) -> None:
    manifest = kit.net()
    config = {"width": 17}
    here = replace(manifest.module, config_sha256=digest(config), config=config)
    entries, (rejection,), others = listed(kit.store.root, lambda _: "cpu", lambda _: here)
    assert (entries, others) == ([], {manifest.component})
    assert (rejection.key, rejection.slug) == (manifest.key[:12], manifest.signature.slug)
    assert "width is 17 (built with 16)" in rejection.reasons[0]
    entries, rejections, others = listed(kit.store.root, lambda _: "cpu", lambda _: manifest.module)
    assert ([e.manifest.key for e in entries], rejections, others) == ([manifest.key], [], set())


def test_component_is_missed_when_all_there_is_is_of_another_architecture(kit: Kit) -> None:
    kit.net()
    other = nets.net()
    other.config = {**other.config, "width": 17}
    with pytest.raises(NoArtifactError, match="No artifact serves net:"):
        kit.load(net=other, fallback="error")


def test_listed_refuses_when_the_folder_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no artifacts"):
        listed(tmp_path, lambda _: None)
