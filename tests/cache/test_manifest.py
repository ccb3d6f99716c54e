from __future__ import annotations

import hashlib
import importlib.resources
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import GPU, dynamic_signature, identity, make_manifest, record
from jsonschema import Draft202012Validator

from aotbuild.cache.files import FileRecord, Packed, Parameter
from aotbuild.cache.manifest import Manifest
from aotbuild.canonical import canonical_bytes, digest
from aotbuild.errors import ManifestError

GOLDEN = Path(__file__).with_name("golden_manifest.json")
SCHEMA = json.loads(
    importlib.resources.files("aotbuild.cache").joinpath("manifest.schema.json").read_text("utf-8")
)


PACKED = Packed(
    file=FileRecord(name="constants.safetensors", sha256="1" * 64, bytes=4096),
    parameters=(
        Parameter(name="sample", required=True, default=None, read=True),
        Parameter(name="return_dict", required=False, default=True, read=True),
    ),
    checkpoint="org/model",
    revision="c" * 40,
    digest="2" * 64,
)


def manifests() -> dict[str, Manifest]:
    return {
        "exact": make_manifest(),
        "dynamic": make_manifest(signature=dynamic_signature(), target=GPU),
        "verified": make_manifest(verification=(record(make_manifest().key),)),
        "regional": make_manifest(scope="regional", component="vae.decode", method="decode"),
        "packed": make_manifest(packed=PACKED),
        "packed from a folder": make_manifest(
            packed=replace(PACKED, checkpoint=None, revision=None)
        ),
    }


def sealed(document: dict[str, Any]) -> bytes:
    """The document as `manifest.json` would hold it, with a digest that is right for it."""
    body = canonical_bytes(document)
    return body[:-1] + b',"sha256":"' + digest(document).encode() + b'"}\n'


def test_golden_manifest_is_byte_for_byte_what_is_written() -> None:
    assert GOLDEN.read_bytes() == make_manifest().to_bytes()
    assert Manifest.from_bytes(GOLDEN.read_bytes()) == make_manifest()


def test_schema_is_itself_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", manifests())
def test_manifest_is_the_same_when_written_and_read_and_fits_the_schema(name: str) -> None:
    manifest = manifests()[name]
    data = manifest.to_bytes()

    assert Manifest.from_bytes(data) == manifest
    Draft202012Validator(SCHEMA).validate(json.loads(data))


def test_schema_refuses_a_field_too_many_at_every_level() -> None:
    def objects(value: Any, path: str = "") -> list[str]:
        if isinstance(value, list):
            return [p for i, v in enumerate(value) for p in objects(v, f"{path}/{i}")]
        if not isinstance(value, dict):
            return []
        return [path, *(p for k, v in value.items() for p in objects(v, f"{path}/{k}"))]

    free = ("/module/config", "/state", "/recipe", "/checks", "/provenance", "/verification")
    validator = Draft202012Validator(SCHEMA)
    document = json.loads(make_manifest(packed=PACKED).to_bytes())
    paths = [p for p in objects(document) if not p.startswith(free) and "/value" not in p]

    assert len(paths) > 15
    for path in paths:
        changed = json.loads(make_manifest(packed=PACKED).to_bytes())
        inner = changed
        for step in path.split("/")[1:]:
            inner = inner[int(step) if isinstance(inner, list) else step]
        inner["surplus"] = 1
        assert not validator.is_valid(changed), path
        del changed["sha256"]
        with pytest.raises(ManifestError):
            Manifest.from_bytes(sealed(changed))


def test_manifest_is_refused_when_any_byte_is_flipped() -> None:
    data = make_manifest().to_bytes()

    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        with pytest.raises(ManifestError, match=r"prune --broken"):
            Manifest.from_bytes(bytes(flipped))


def test_manifest_is_refused_when_it_is_cut_short() -> None:
    data = make_manifest().to_bytes()

    for length in range(0, len(data), 97):
        with pytest.raises(ManifestError):
            Manifest.from_bytes(data[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'["sha256"]',
        b"1",
        b"null",
        b'{"sha256": NaN}',
        b'{"a": NaN, "sha256": "x"}',
        b'{"a": "\\ud800", "sha256": "x"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
    ],
)
def test_manifest_is_refused_when_it_is_something_else(data: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(data)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", 2, "of format 2, newer than"),
        ("format", "1", "format '1' is unknown"),
        ("key", "0" * 64, "key isn't the digest of its parts"),
        ("scope", "half", "neither full nor regional"),
        ("component", "../../etc", "isn't a plain name"),
        ("component", "", "isn't a plain name"),
        ("state", [], "state: expected an object"),
        ("verification", [1], "verification: 'passed' must be true or false"),
        ("package", {"name": "package.pt2", "sha256": "../x", "bytes": 1}, "64 hex digits"),
        ("package", {"name": "package.pt2", "sha256": "0" * 64, "bytes": True}, "isn't a size"),
        ("packed", {**PACKED.to_json(), "digest": "3" * 64}, "part 'weights' isn't what packed"),
        ("packed", {**PACKED.to_json(), "digest": "x"}, "64 hex digits"),
        ("packed", {**PACKED.to_json(), "checkpoint": 1}, "neither text nor null"),
        (
            "packed",
            {**PACKED.to_json(), "file": {"name": "a.pt", "sha256": "0" * 64, "bytes": 1}},
            "its file is 'a.pt'",
        ),
        ("packed", {**PACKED.to_json(), "parameters": [{"name": "a b"}]}, "is missing"),
        ("packed", {}, "field 'file' is missing"),
        ("target", {**GPU.to_json(), "arch": "../x"}, "isn't a plain name"),
    ],
)
def test_manifest_is_refused_when_a_field_is_not_what_it_must_be(
    field: str, value: Any, message: str
) -> None:
    document = {**make_manifest().to_json(), field: value}

    with pytest.raises(ManifestError, match=message):
        Manifest.from_bytes(sealed(document))


def test_manifest_is_refused_when_it_is_right_but_not_canonical() -> None:
    body = canonical_bytes(make_manifest().to_json()).replace(b'"format":', b'"format": ')
    digest_ = hashlib.sha256(body).hexdigest().encode()

    with pytest.raises(ManifestError, match="canonical"):
        Manifest.from_bytes(body[:-1] + b',"sha256":"' + digest_ + b'"}\n')


def test_manifest_is_refused_when_its_digest_is_of_other_bytes_of_the_same_document() -> None:
    document = json.loads(make_manifest().to_bytes())

    with pytest.raises(ManifestError, match="altered"):
        Manifest.from_bytes(json.dumps(document).encode())


def test_folder_is_spelled_by_component_target_and_signature() -> None:
    manifest = make_manifest()

    assert manifest.folder.startswith("artifacts/unet/x86-64-v3/2x4x8x8-float32-")
    assert manifest.folder.endswith(f"-{manifest.key[:12]}")


def test_module_identity_is_refused_when_its_digest_is_another_configs() -> None:
    with pytest.raises(ValueError, match="config_sha256"):
        replace(identity(), config={"act_fn": "gelu"})


def test_file_record_is_refused_when_its_size_is_negative() -> None:
    with pytest.raises(ValueError, match="isn't a size"):
        FileRecord(name="package.pt2", sha256="0" * 64, bytes=-1)


def test_manifest_of_packed_constants_has_another_key_than_the_weightless_one() -> None:
    assert make_manifest(packed=PACKED).key != make_manifest().key
    assert (
        make_manifest(packed=replace(PACKED, digest="3" * 64)).key
        != make_manifest(packed=PACKED).key
    )


def test_manifest_is_refused_when_its_key_speaks_of_weights_that_it_does_not_pack() -> None:
    document = {**make_manifest(packed=PACKED).to_json(), "packed": None}

    with pytest.raises(ManifestError, match="part 'weights'"):
        Manifest.from_bytes(sealed(document))
