"""Signatures: what each vouches for, and what is refused. Needs the extra `sign`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import record, stage
from hub_state import SmallHub

from aotbuild.cache.artifact import Entry
from aotbuild.cache.collection import INDEX, Index, describe_entry, joined
from aotbuild.cache.item import Item
from aotbuild.cache.lockfile import read_lock
from aotbuild.cache.seals import (
    distrust,
    public_of,
    read_private,
    signed,
    statement,
    trusted_keys,
)
from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.errors import UsageError

pytest.importorskip("cryptography", reason="the extra `sign` isn't installed")

NAME = "org/signed"


def write_key(folder: Path, name: str) -> tuple[Path, Path]:
    """PEM files of a new key: private, public."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


@pytest.fixture
def key(tmp_path: Path) -> Any:
    return read_private(write_key(tmp_path, "ours")[0])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def add(store: Store, **changes: Any) -> Entry:
    with store.staging() as root:
        return store.add(stage(root, **changes))


@pytest.fixture
def item(store: Store) -> Item:
    return describe_entry(add(store))


def test_entry_is_trusted_when_a_named_key_signed_it(item: Item, key: Any) -> None:
    trusted = trusted_keys([public_of(key).upper()])
    read_back = Index.from_bytes(Index((signed(item, key),)).to_bytes()).items[0]
    assert distrust(read_back, trusted) is None
    assert signed(read_back, key) == read_back


def test_entry_is_trusted_still_when_records_and_seals_were_added(
    item: Item, key: Any, store: Store, tmp_path: Path
) -> None:
    sealed = signed(item, key)
    (entry,) = (e for e in store.entries() if isinstance(e, Entry))
    store.add_verification(entry, record(entry.manifest.key))
    other = read_private(write_key(tmp_path, "others")[0])

    both = joined(sealed, signed(describe_entry(entry), other))

    assert len(both.records) == 1
    assert {s.public for s in both.seals} == {public_of(key), public_of(other)}
    for each in (key, other):
        assert distrust(both, trusted_keys([public_of(each)])) is None


CHANGES = {
    "key": lambda i: replace(i, key="0" * 64),
    "method": lambda i: replace(i, method="other"),
    "precision": lambda i: replace(i, precision="float16"),
    "state": lambda i: replace(i, state={}),
    "target": lambda i: replace(i, target=replace(i.target, torch="2.13.1")),
    "versions": lambda i: replace(i, versions={}),
    "covers": lambda i: replace(i, covers=replace(i.covers, recipe="other")),
    "signature": lambda i: replace(i, signature=replace(i.signature, returns=())),
    "module": lambda i: replace(i, module=replace(i.module, source_sha256="9" * 64)),
    "a file": lambda i: replace(i, files=(replace(i.files[0], sha256="0" * 64), *i.files[1:])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_seal_is_over_another_artifact_when_anything_of_it_differs(
    what: str, item: Item, key: Any
) -> None:
    sealed = signed(item, key)
    changed = CHANGES[what](sealed)
    assert statement(changed) != statement(sealed)
    assert "isn't over this artifact" in str(distrust(changed, trusted_keys([public_of(key)])))


def test_entry_is_distrusted_when_nobody_or_a_stranger_signed_it(
    item: Item, key: Any, tmp_path: Path
) -> None:
    stranger = read_private(write_key(tmp_path, "stranger")[0])
    trusted = trusted_keys([public_of(stranger)])
    assert "isn't signed" in str(distrust(item, trusted))
    assert "isn't among the trusted keys" in str(distrust(signed(item, key), trusted))


def test_seal_of_another_manifest_is_left_out_when_entries_are_joined(item: Item, key: Any) -> None:
    theirs = replace(item, files=tuple(
        replace(f, sha256="0" * 64) if f.name == "manifest.json" else f for f in item.files
    ))  # fmt: skip
    assert joined(theirs, signed(item, key)).seals == ()


def test_keys_are_refused_when_they_are_none(tmp_path: Path, key: Any) -> None:
    private, public = write_key(tmp_path, "more")
    assert trusted_keys([public, str(public)]) == {public_of(read_private(private))}
    for odd in ("abc", tmp_path / "none.pem", private):
        with pytest.raises(UsageError, match="trusted key"):
            trusted_keys([odd])
    with pytest.raises(UsageError, match="names no key"):
        trusted_keys([])
    with pytest.raises(UsageError, match="openssl genpkey"):
        read_private(public)


# Over the Hub


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code = main([*map(str, arguments), "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_signed_artifacts_are_pulled_locked_and_prefetched_and_others_refused(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (ours, public), (stranger, other) = (write_key(tmp_path, n) for n in ("ours", "stranger"))
    first = add(store, salt="a")
    run(capsys, "push", NAME, "--all", "--sign", ours, "--store", store.root)
    second = add(store, salt="b")
    commit = run(capsys, "push", NAME, second.manifest.key, "--store", store.root)["revision"]

    there = tmp_path / "there"
    pull = ["pull", NAME, "--revision", commit, "--store", there, "--trusted-key"]
    assert "isn't signed" in fail(capsys, *pull, public)
    assert "isn't among" in fail(capsys, *pull, other, first.manifest.key)
    assert list(Store(there).entries()) == []
    run(capsys, *pull, public, first.manifest.key)

    lock = tmp_path / "aotbuild.lock"
    run(capsys, "lock", NAME, first.manifest.key, "--trusted-key", public, "--out", lock)
    assert read_lock(lock).items[0].seals
    run(capsys, "prefetch", lock, "--trusted-key", public, "--store", there)
    prefetch = ["prefetch", lock, "--store", tmp_path / "empty", "--trusted-key", other]
    assert "isn't among" in fail(capsys, *prefetch)

    # Signing what is there already adds the seal and sends no file again.
    small_hub.log.clear()
    run(capsys, "push", NAME, second.manifest.key, "--sign", stranger, "--store", store.root)
    repo = small_hub.repos[NAME]
    items = Index.from_bytes(repo.commits[repo.head][INDEX]).items
    assert all(len(i.seals) == 1 for i in items)
    assert not [p for m, p, _ in small_hub.log if m == "PUT"]


def test_signing_is_refused_when_the_published_manifest_is_anothers(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store, provenance={"by": "them"})
    run(capsys, "push", NAME, "--all", "--store", store.root)
    mine = Store(tmp_path / "mine")
    add(mine, provenance={"by": "me"})
    private, _ = write_key(tmp_path, "ours")
    said = fail(capsys, "push", NAME, "--all", "--sign", private, "--store", mine.root)
    assert "can't be signed" in said


def test_owner_is_refused_when_others_are_allowed(
    small_hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("AOTBUILD_ALLOWED_OWNERS", "me, us")
    for command in (["pull", NAME, "--revision", "a" * 40], ["lock", NAME]):
        assert main(command) == 2
        assert "allowed are me, us" in capsys.readouterr().err
    assert small_hub.log == []
