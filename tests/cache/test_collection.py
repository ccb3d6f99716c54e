from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from artifacts import CPU, GPU, dynamic_signature, identity, record, stage

from aotbuild.cache import match
from aotbuild.cache.artifact import Entry
from aotbuild.cache.card import END, Facts, render
from aotbuild.cache.collection import Index, describe_entry
from aotbuild.cache.lockfile import Lock, read_lock
from aotbuild.cache.match import ModuleFacts
from aotbuild.cache.store import Store
from aotbuild.canonical import canonical_bytes, digest
from aotbuild.errors import IntegrityError, ManifestError, SourceError
from aotbuild.target import Rejected

RECIPE = {
    "name": "sdxl",
    "dtype": "bf16",
    "call": {"resolution": "1024x1024", "batch": 2},
    "components": {"unet": {"quantization": "int8dq"}},
}


def add(store: Store, **changes: Any) -> Entry:
    with store.staging() as root:
        return store.add(stage(root, **changes))


def index_of(*entries: Entry) -> Index:
    return Index().merged(describe_entry(e) for e in entries)[0]


def facts(**changes: Any) -> ModuleFacts:
    state = {"training": False, "switches": {"use_tiling": False}}
    fields = {"identity": identity(), "state": state, "precision": "float32", "device": "cpu"}
    return ModuleFacts(**{**fields, **changes})


def test_index_reads_back_the_same_when_it_was_written(store: Store) -> None:
    entries = [
        add(store, salt="a"),
        add(store, salt="b", recipe=RECIPE, target=GPU, packed=b"weights"),
        add(store, salt="c", signature=dynamic_signature()),
    ]
    store.add_verification(entries[0], record(entries[0].manifest.key))
    index = index_of(*entries)

    assert Index.from_bytes(index.to_bytes()) == index
    assert {i.folder for i in index.items} == {e.manifest.folder for e in entries}
    (packed,) = (i for i in index.items if i.packed)
    assert [f.name for f in packed.files] == [
        "constants.safetensors", "manifest.json", "package.pt2",
    ]  # fmt: skip
    assert packed.bytes == entries[1].bytes
    assert (packed.covers.recipe, packed.covers.resolution) == ("sdxl", "1024x1024")
    assert packed.covers.quantization == "int8dq"


def test_what_artifacts_share_stands_in_the_index_once(store: Store) -> None:
    one = len(index_of(add(store, salt="0")).to_bytes())
    many = len(index_of(*(add(store, salt=str(n)) for n in range(10))).to_bytes())

    assert (many - one) / 9 < 0.6 * one


def test_artifact_is_judged_alike_by_its_index_entry_and_its_manifest(store: Store) -> None:
    entry = add(store, verification=())
    store.add_verification(entry, record(entry.manifest.key))
    (item,) = Index.from_bytes(index_of(entry).to_bytes()).items
    records = store.verifications(entry)
    for here, machine in [
        (facts(), CPU),
        (facts(), GPU),
        (facts(identity=identity(config={"sample_size": 9})), CPU),
        (facts(identity=identity(source_sha256="6" * 64), versions={"diffusers": "9"}), CPU),
        (facts(state={"training": True}, precision="float16"), CPU),
    ]:
        expected = match.judge(entry.manifest, here, machine, records=records)
        assert match.judge(item, here, machine, records=item.verification) == expected
        ranks = (
            match.rank(entry.manifest, machine, records=records),
            match.rank(item, machine, records=item.verification),
        )
        assert ranks[0] == ranks[1]
    assert match.verified(item, CPU, records=item.verification)
    assert isinstance(match.judge(item, facts(), GPU), Rejected)


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_index_is_refused_when_a_byte_differs(store: Store, place: int) -> None:
    data = bytearray(index_of(add(store)).to_bytes())
    data[len(data) * place // 100] ^= 1
    with pytest.raises(ManifestError):
        Index.from_bytes(bytes(data))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(format=2), "of format 2, newer than"),
        (lambda d: d.update(more=1), "fields"),
        (lambda d: d["artifacts"][0].update(more=1), "unknown field"),
        (lambda d: d["artifacts"][0].update(component="../x"), "plain names"),
        (lambda d: d["artifacts"][0]["target"].update(arch="../x"), "plain names"),
        (lambda d: d["artifacts"][0]["files"].pop(), "files lack"),
        (lambda d: d["artifacts"][0]["files"][0].update(name="../package.pt2"), "files lack"),
        (lambda d: d["artifacts"].append(d["artifacts"][0]), "twice"),
        (lambda d: d["artifacts"][0].update(scope="half"), "neither full nor regional"),
        (lambda d: d["artifacts"][0].update(scope="full\x1b[2J"), "can be shown"),
        (lambda d: d["artifacts"][0]["covers"].update(recipe="sdxl\n# Mine"), "can be shown"),
        (lambda d: d["artifacts"][0]["covers"].update(batch=0), "batch is 0"),
        (lambda d: d["artifacts"][0]["target"].update(torch="2.13\r"), "can be shown"),
        (lambda d: d["documents"].popitem(), "no document"),
        (lambda d: d["documents"].update({"0" * 64: 1}), "document 000000000000 was altered"),
    ],
)
def test_index_is_refused_with_the_reason_when_a_field_is_odd(
    store: Store, change: Any, expected: str
) -> None:
    document = json.loads(index_of(add(store)).to_bytes())
    del document["sha256"]
    change(document)
    body = canonical_bytes(document)
    data = body[:-1] + b',"sha256":"' + digest(document).encode() + b'"}\n'
    with pytest.raises(ManifestError, match=expected):
        Index.from_bytes(data)


@pytest.mark.parametrize("odd", [b"NaN", b"1e999", b'"\\ud800"'])
def test_index_is_refused_when_it_holds_what_no_json_has(store: Store, odd: bytes) -> None:
    data = index_of(add(store)).to_bytes().replace(b'"checkpoint":null', b'"checkpoint":' + odd)
    assert odd in data
    with pytest.raises(ManifestError, match="isn't a collection's index"):
        Index.from_bytes(data)


def test_schema_takes_the_index(store: Store) -> None:
    schema = json.loads(files("aotbuild.cache").joinpath("collection.schema.json").read_text())
    document = json.loads(index_of(add(store, packed=b"x"), add(store, salt="b")).to_bytes())
    jsonschema.validate(document, schema)
    document["artifacts"][0]["more"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_merging_keeps_both_sides_and_adds_records_to_what_is_there(store: Store) -> None:
    ours, theirs = add(store, salt="ours"), add(store, salt="theirs")
    first = index_of(theirs)
    store.add_verification(theirs, record(theirs.manifest.key))

    index, new = first.merged([describe_entry(ours), describe_entry(theirs)])

    assert {i.key for i in index.items} == {ours.manifest.key, theirs.manifest.key}
    assert len(new) == 2
    assert index.merged([describe_entry(theirs)]) == (index, ())
    (joined,) = (i for i in index.items if i.key == theirs.manifest.key)
    assert any(f.name.startswith("verifications/") for f in joined.files)
    assert [r.passed for r in joined.records] == [True]


def test_merging_is_refused_when_a_key_has_two_packages(store: Store, tmp_path: Path) -> None:
    item = describe_entry(add(store))
    changed = tuple(replace(f, sha256="0" * 64) if "pt2" in f.name else f for f in item.files)
    with pytest.raises(IntegrityError, match="isn't reproducible"):
        Index((item,)).merged([replace(item, files=changed)])


def test_card_has_metadata_a_row_each_and_what_its_owner_wrote(store: Store) -> None:
    index = index_of(add(store, recipe=RECIPE, provenance={"checkpoint": "org/base"}))
    card = render(index, "me/it", Facts(license="mit"), {"tags": ["mine"], "language": "en"}, "")
    again = render(index, "me/it", Facts(), {"license": "mit"}, card + "\nMy own words.\n")

    for text in (card, again):
        head, _, body = text.removeprefix("---\n").partition("---\n")
        assert 'base_model: ["org/base"]' in head
        assert 'library_name: "aotbuild"' in head
        assert 'license: "mit"' in head
        assert f"`{index.items[0].key[:12]}`" in body
        assert "1024x1024" in body
        assert 'revision="<commit>"' in body
    assert 'language: "en"' in card
    assert '"mine"' in card
    assert again.endswith("My own words.\n")
    assert again.count(END) == 1


def test_card_shows_what_an_index_says_as_text(store: Store) -> None:
    odd = {**RECIPE, "name": "a|b<script>[x](y)"}
    text = render(index_of(add(store, recipe=odd)), "o/r", Facts(), {}, "")
    assert "| a\\|b\\<script\\>\\[x\\](y) |" in text


def test_lockfile_reads_back_the_same_when_it_was_written(store: Store, tmp_path: Path) -> None:
    items = index_of(add(store), add(store, salt="b", packed=b"x")).items
    lock = Lock(repository="org/repo", revision="a" * 40, items=items)
    path = tmp_path / "aotbuild.lock"
    lock.write(path)
    lock.write(path)

    assert read_lock(path) == lock
    assert [p.name for p in tmp_path.iterdir() if "lock" in p.name] == ["aotbuild.lock"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "\udcff"])
def test_lockfile_is_refused_when_it_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "aotbuild.lock"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(SourceError, match="aotbuild lock"):
        read_lock(path)


def test_lockfile_is_refused_when_a_name_stands_twice(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "aotbuild.lock"
    Lock(repository="o/r", revision="a" * 40, items=index_of(add(store)).items).write(path)
    text = path.read_text().replace('"repository"', '"repository": "other/one", "repository"')
    path.write_text(text)
    with pytest.raises(SourceError, match="'repository' twice"):
        read_lock(path)


def test_lockfile_is_refused_when_a_digest_was_edited(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "aotbuild.lock"
    Lock(repository="o/r", revision="a" * 40, items=index_of(add(store)).items).write(path)
    document = json.loads(path.read_text())
    for name in [*document["documents"]]:
        document["documents"]["f" * 64] = document["documents"].pop(name)
        break
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match="altered"):
        read_lock(path)
