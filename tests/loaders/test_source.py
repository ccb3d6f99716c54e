from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotbuild.cache.manifest import Manifest, ModuleIdentity
from aotbuild.canonical import digest
from aotbuild.errors import NoArtifactError, SourceError
from aotbuild.loaders.source import listed

from . import nets
from .conftest import Kit


def of_width_17(manifest: Manifest) -> ModuleIdentity:
    config = {"width": 17}
    return replace(manifest.module, config_sha256=digest(config), config=config)


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
    manifests = sorted((kit.net(), kit.net(size=8)), key=lambda m: m.key)
    here = of_width_17(manifests[0])
    entries, rejections, others = listed(kit.store.root, lambda _: "cpu", lambda _: here)
    assert (entries, others) == ([], {"net"})
    rejections.sort(key=lambda r: r.key)
    assert [(r.key, r.slug) for r in rejections] == [
        (m.key[:12], m.signature.slug) for m in manifests
    ]
    assert all("width is 17 (built with 16)" in r.reasons[0] for r in rejections)
    entries, rejections, others = listed(
        kit.store.root, lambda _: "cpu", lambda _: manifests[0].module
    )
    assert sorted(e.manifest.key for e in entries) == [m.key for m in manifests]
    assert (rejections, others) == ([], set())


def test_listed_reads_the_only_artifact_of_a_unit_without_asking_what_the_module_is(
    kit: Kit,
) -> None:
    manifest, asked = kit.net(), list[str]()
    here = of_width_17(manifest)

    def identity_of(unit: str) -> ModuleIdentity:
        asked.append(unit)
        return here

    entries, _, others = listed(kit.store.root, lambda _: "cpu", identity_of)
    assert ([e.manifest.key for e in entries], others, asked) == ([manifest.key], set(), [])


def test_component_is_missed_when_all_there_is_is_of_another_architecture(kit: Kit) -> None:
    kit.net()
    other = nets.net()
    other.config = {**other.config, "width": 17}
    with pytest.raises(NoArtifactError, match="No artifact serves net:"):
        kit.load(net=other, fallback="error")


def test_listed_refuses_when_the_folder_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no artifacts"):
        listed(tmp_path, lambda _: None)
