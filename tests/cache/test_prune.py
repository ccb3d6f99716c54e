"""What `prune` takes and leaves, beside what `test_store` says of stores."""

from __future__ import annotations

from artifacts import stage

from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store


def test_prune_finds_the_artifact_when_its_key_is_in_capitals_and_spaces(
    store: Store, entry: Entry
) -> None:
    pruned = store.prune(key=f" {entry.manifest.key[:9].upper()}\n")
    assert [r.key for r in pruned.removed] == [entry.manifest.key]


def test_prune_removes_nothing_when_the_key_is_blank(store: Store, entry: Entry) -> None:
    assert store.prune(key="  ").removed == ()
    assert list(store.entries()) == [entry]


def test_prune_removes_a_broken_artifact_when_its_folder_has_the_key(
    store: Store, entry: Entry
) -> None:
    (entry.folder / "package.pt2").unlink()
    assert store.prune(key=entry.manifest.key[:13] + "0" * 51, dry_run=True).removed
    assert [r.path for r in store.prune(key=entry.manifest.key[:9]).removed] == [entry.folder]


def test_prune_leaves_a_stray_folder_when_its_name_is_no_artifacts(
    store: Store, entry: Entry
) -> None:
    stray = entry.folder.with_name("abcdef")
    stray.mkdir()
    assert store.prune(key="abc").removed == ()


def test_prune_takes_the_folders_above_along_when_they_are_empty_by_it(
    store: Store, entry: Entry
) -> None:
    with store.staging() as root:
        other = store.add(stage(root, salt="other", component="vae.decode", method="decode"))
    store.prune(key=other.manifest.key)
    assert [f.name for f in (store.root / "artifacts").iterdir()] == ["unet"]
    store.prune(key=entry.manifest.key)
    assert list((store.root / "artifacts").iterdir()) == []


def test_prune_leaves_empty_folders_when_it_did_not_empty_them(store: Store, entry: Entry) -> None:
    mine = [store.root / "notes", store.root / "artifacts" / "mine" / "empty"]
    for folder in mine:
        folder.mkdir(parents=True)
    store.prune(key=entry.manifest.key)
    assert all(folder.is_dir() for folder in mine)
    assert not entry.folder.parent.parent.exists()


def test_prune_keeps_what_it_is_told_to_when_age_or_size_would_remove_it(
    store: Store, entry: Entry
) -> None:
    with store.staging() as root:
        other = store.add(stage(root, salt="other"))
    keep = {entry.manifest.key}

    old = store.prune(older_than_s=0, now_s=4e9, keep=keep, dry_run=True)
    large = store.prune(max_bytes=0, keep=keep)

    for pruned in (old, large):
        assert [r.key for r in pruned.removed] == [other.manifest.key]
    assert list(store.entries()) == [entry]
    (entry.folder / "package.pt2").unlink()
    assert store.prune(broken=True, keep=keep).removed
