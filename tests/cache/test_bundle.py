"""Archives of caches: the same bytes twice, refused where odd, unpacked beside what is there."""

from __future__ import annotations

import json
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import CACHES, make_manifest, sha256, stage, stage_bundle
from jsonschema import Draft202012Validator

from aotbuild.cache import bundle
from aotbuild.cache.artifact import Broken, Entry, read_or_broken, verify_artifact
from aotbuild.cache.backend import AOT, INDUCTOR_CACHE, CompileSettings
from aotbuild.cache.collection import Index, describe_entry
from aotbuild.cache.files import FileRecord
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.store import Store
from aotbuild.errors import IntegrityError, LoadError, ManifestError

CACHE = Path(bundle.__file__).parent


def staged(tmp_path: Path, files: dict[str, bytes]) -> Entry:
    return verify_artifact(stage_bundle(tmp_path, files))


def recorded(folder: Path) -> Manifest:
    """A bundle's manifest whose record is right for whatever archive is in `folder`."""
    data = (folder / bundle.BUNDLE).read_bytes()
    record = FileRecord(name=bundle.BUNDLE, sha256=sha256(data), bytes=len(data))
    return replace(make_manifest(backend=INDUCTOR_CACHE), package=record)


def check(folder: Path) -> None:
    with bundle.open_bundle(folder, recorded(folder)):
        pass


def install(entry: Entry, root: Path) -> tuple[int, int]:
    roots = {name: root / name for name in bundle.ROOTS}
    with bundle.open_bundle(entry.folder, entry.manifest) as archive:
        return bundle.install(archive, roots, entry.folder)


def test_bundle_has_the_same_bytes_when_written_twice(tmp_path: Path) -> None:
    for name, text in (("b", b"2"), ("a", b"1")):
        (tmp_path / name).write_bytes(text)
    files = {f"inductor/{n}/{n}.so": tmp_path / n for n in "ba"}
    bundle.write_bundle(tmp_path / "first.zip", files)
    (tmp_path / "a").touch()
    bundle.write_bundle(tmp_path / "second.zip", dict(sorted(files.items())))

    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "first.zip") as archive:
        assert archive.namelist() == ["inductor/a/a.so", "inductor/b/b.so"]


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "inductor/../x",
        "inductor/..",
        "/inductor/x",
        "inductor//x",
        "inductor/./x",
        "inductor/x/",
        "inductor",
        "other/x",
        "inductor\\x",
        "inductor/a b",
        "Inductor/x",
        "triton/\u00e4",
    ],
)
def test_bundle_is_refused_when_a_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / bundle.BUNDLE, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(IntegrityError, match=r"isn't named as a file below inductor/ or triton/"):
        check(tmp_path)


def test_bundle_is_refused_when_a_member_is_a_link(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("inductor/x")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / bundle.BUNDLE, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(IntegrityError, match="is a link"):
        check(tmp_path)


def test_bundle_is_refused_when_a_member_is_compressed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / bundle.BUNDLE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inductor/x", bytes(1 << 20))
    with pytest.raises(IntegrityError, match="is compressed"):
        check(tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bundle_is_refused_when_a_member_is_there_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / bundle.BUNDLE, "w") as archive:
        archive.writestr("inductor/x", b"1")
        archive.writestr("inductor/X", b"2")
    with pytest.raises(IntegrityError, match="is there twice"):
        check(tmp_path)


def test_bundle_is_refused_when_it_is_larger_than_any(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="more than any bundle"):
        bundle.check_bundle([], bundle.LARGEST_BUNDLE_BYTES + 1, tmp_path)


def test_bundle_is_refused_when_its_members_claim_more_than_it_holds(tmp_path: Path) -> None:
    member = zipfile.ZipInfo("inductor/x")
    member.file_size = member.compress_size = 1000
    with pytest.raises(IntegrityError, match="larger than itself"):
        bundle.check_bundle([member], 999, tmp_path)


def test_bundle_is_refused_before_unpacking_when_a_byte_differs(tmp_path: Path) -> None:
    folder = stage_bundle(tmp_path)
    path = folder / bundle.BUNDLE
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="was altered"):
        verify_artifact(folder)


def test_members_are_installed_and_what_is_there_stays(tmp_path: Path) -> None:
    entry = staged(tmp_path / "store", CACHES)
    theirs = tmp_path / "caches" / "inductor" / "2x" / "c2x.main.so"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"somebody else's")

    assert install(entry, tmp_path / "caches") == (1, 1)
    assert theirs.read_bytes() == b"somebody else's"
    graph = tmp_path / "caches" / "inductor" / "fxgraph" / "ab" / "fab" / "cde"
    assert graph.read_bytes() == CACHES["inductor/fxgraph/ab/fab/cde"]
    assert install(entry, tmp_path / "caches") == (0, 2)
    assert not [p for p in (tmp_path / "caches").rglob(".*") if p.is_file()]


def test_member_is_not_written_through_a_link_that_is_there(tmp_path: Path) -> None:
    entry = staged(tmp_path / "store", {"inductor/2x/c.so": b"new"})
    (tmp_path / "caches/inductor/2x").mkdir(parents=True)
    (tmp_path / "caches/inductor/2x/c.so").symlink_to(tmp_path / "target")
    install(entry, tmp_path / "caches")
    assert not (tmp_path / "target").exists()


def test_install_says_which_folder_when_it_can_not_be_written(tmp_path: Path) -> None:
    entry = staged(tmp_path / "store", CACHES)
    (tmp_path / "caches").write_bytes(b"a file")
    with pytest.raises(LoadError, match="TORCHINDUCTOR_CACHE_DIR"):
        install(entry, tmp_path / "caches")


def test_bundle_is_kept_listed_and_verified_by_a_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    with store.staging() as root:
        entry = store.add(stage_bundle(root))
    assert [e.folder for e in store.entries()] == [entry.folder]
    store.verify(entry)
    with pytest.raises(IntegrityError, match="JIT-cache bundle"):
        store.open_library(entry)
    assert len(store.prune(key=entry.manifest.key).removed) == 1
    assert not list(store.entries())


def test_artifact_is_broken_when_its_package_is_the_other_backends(tmp_path: Path) -> None:
    folder = stage_bundle(tmp_path)
    (folder / bundle.BUNDLE).rename(folder / "package.pt2")
    found = read_or_broken(folder)
    assert isinstance(found, Broken)
    assert f"holds no {bundle.BUNDLE}" in found.reason


def test_artifact_is_broken_when_it_has_two_packages(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    (folder / bundle.BUNDLE).write_bytes(b"x")
    found = read_or_broken(folder)
    assert isinstance(found, Broken)
    assert "two packages" in found.reason


def test_bundles_manifest_and_index_are_read_as_they_were_written(tmp_path: Path) -> None:
    entry = verify_artifact(stage_bundle(tmp_path))
    data = entry.manifest.to_bytes()
    assert Manifest.from_bytes(data) == entry.manifest
    assert CompileSettings.of(entry.manifest.parts).dynamic is False
    schema = json.loads((CACHE / "manifest.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads(data))

    index = Index((describe_entry(entry),))
    assert Index.from_bytes(index.to_bytes()) == index
    assert index.items[0].backend == INDUCTOR_CACHE
    schema = json.loads((CACHE / "collection.schema.json").read_text())
    Draft202012Validator(schema).validate(json.loads(index.to_bytes()))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": "tvm"}, "is none of aot, inductor-cache"),
        ({"backend": AOT}, "its package is called 'jit-cache.zip'"),
        ({"library": {"name": "x.so", "sha256": "0" * 64, "bytes": 1}}, "neither one library"),
    ],
)
def test_manifest_is_refused_when_it_is_of_two_backends(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    document = verify_artifact(stage_bundle(tmp_path)).manifest.to_json()
    with pytest.raises(ManifestError, match=said):
        Manifest.from_json({**document, **changes})


def test_manifest_is_refused_when_its_key_is_of_the_other_backend() -> None:
    ours = make_manifest(backend=INDUCTOR_CACHE)
    document = make_manifest().to_json()
    changes = {"key": ours.key, "parts": [p.to_json() for p in ours.parts]}
    with pytest.raises(ManifestError, match=r"has a library, and no torch\.compile"):
        Manifest.from_json({**document, **changes})
