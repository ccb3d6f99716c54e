"""Manifests whose digest is right and whose content is odd: refused, never a traceback later."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from typing import Any

import pytest
from artifacts import GPU, dynamic_signature, make_manifest, make_packed, record, stage
from jsonschema import Draft202012Validator

from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.key import Part, key_of
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.store import Store
from aotbuild.canonical import canonical_bytes, digest
from aotbuild.cli import main
from aotbuild.errors import ManifestError

SCHEMA = json.loads(
    importlib.resources.files("aotbuild.cache").joinpath("manifest.schema.json").read_text("utf-8")
)
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, "", "x", "../x", "A b", [], [1], [-1], [True], ["x"]),
    *([None], [[]], [["x"]], {}, {"x": 1}, {"dict": [1]}, {"list": "x"}, {"list": 1, "x": 1}),
)
FREE = ("config", "state", "recipe", "provenance", "value")
"""Entries below which anything may stand."""

CASE = {"sizes": {"h": 2}, "artifact_error": 1e-6, "eager_error": 1e-6, "bound": 1e-5}


def documents() -> dict[str, dict[str, Any]]:
    verified = (record(make_manifest().key, cases=[CASE]),)
    checks = {"example_values": {"sample": [0.0, 1]}, "needed": []}
    made = {
        "exact": make_manifest(verification=verified, checks=checks),
        "dynamic": make_manifest(signature=dynamic_signature(), target=GPU),
        "packed": make_manifest(packed=make_packed(b"x")),
    }
    return {name: manifest.to_json() for name, manifest in made.items()}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document; of a list the first entry and the last."""
    if path:
        yield path
    if path and path[-1] in FREE and path[-3:-2] != ("constants",):
        return
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 1} if value else ()):
            yield from places(value[index], (*path, index))


def changed(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with `value` at `path`, and with the digests inside as right as they can be."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    inner: Any = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    if isinstance(copy["module"], dict) and path[-1] != "config_sha256":
        copy["module"]["config_sha256"] = digest(copy["module"].get("config"))
    if path[0] == "parts" and path[-1] != "sha256":
        repair_key(copy)
    return copy


def repair_key(document: dict[str, Any]) -> None:
    try:
        parts = [Part.of(p["name"], p["value"]) for p in document["parts"]]
    except (TypeError, KeyError):
        return
    document |= {"parts": [p.to_json() for p in parts], "key": key_of(parts)}
    for found in document["verification"]:
        found["key"] = document["key"]


def sealed(document: dict[str, Any]) -> bytes:
    body = canonical_bytes(document)
    return body[:-1] + b',"sha256":"' + digest(document).encode() + b'"}\n'


@pytest.mark.parametrize(
    ("name", "below"), [("exact", ""), ("dynamic", "signature"), ("packed", "packed")]
)
def test_manifest_is_refused_when_the_schema_refuses_it(name: str, below: str) -> None:
    document, validator = documents()[name], Draft202012Validator(SCHEMA)
    refused = 0
    for path in places(document):
        for value in ODD if path[0].startswith(below) else ():
            data = sealed(changed(document, path, value))
            if validator.is_valid(json.loads(data)):
                continue
            refused += 1
            with pytest.raises(ManifestError) as caught:
                Manifest.from_bytes(data)
            said = str(caught.value)
            python = ("unpack", "not iterable", "unhashable", "object has", "__init__", "supported")
            assert not any(word in said for word in python), (path, value, said)
    assert refused > 200


BROKEN: dict[str, tuple[tuple[Any, ...], Any]] = {
    "an architecture that is a number": (("target", "arch"), 80),
    "a torch that is none": (("target", "torch"), None),
    "a shape that is text": (("constants", 0, "shape"), "32x4"),
    "sources that are text": (("constants", 0, "sources"), "conv_in"),
    "a class that is a list": (("module", "class_name"), ["U"]),
    "a path that is a number": (("signature", "inputs", 0, "path"), 1),
    "cases that are text": (("verification", 0, "cases"), "all"),
    "a case without errors": (("verification", 0, "cases"), [{"sizes": {}}]),
    "examples that are text": (("checks", "example_values"), {"sample": "zeros"}),
    "a provenance that is a list": (("provenance",), []),
}


@pytest.mark.parametrize("what", BROKEN)
def test_commands_say_that_the_artifact_is_broken_when_it_has(
    what: str, store: Store, entry: Entry, capsys: pytest.CaptureFixture[str]
) -> None:
    path, value = BROKEN[what]
    document = {**entry.manifest.to_json(), "verification": documents()["exact"]["verification"]}
    (entry.folder / "manifest.json").write_bytes(sealed(changed(document, path, value)))
    where, key = ["--store", str(store.root)], entry.manifest.key[:12]

    assert [type(e) for e in store.entries()] == [Broken]
    for command in (["list"], ["doctor"]):
        assert main([*command, *where]) == 0
        assert "broken" in capsys.readouterr().out
        assert main([*command, "--json", *where]) == 0
        assert "can be used" in json.loads(capsys.readouterr().out)["broken"][0]["reason"]
    for command in (["show", key], ["explain", key, key], ["verify", key]):
        assert main([*command, *where]) == 1
        assert "prune --broken" in capsys.readouterr().err


def test_commands_show_the_artifact_when_its_free_entries_are_odd(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"provenance": {"rehearsal": 1, "x": [None]}, "recipe": {"call": 1, "name": []}}
    checks = {"operators": [1, {"x": None}], "": "x" * 1000}
    with store.staging() as root:
        key = store.add(stage(root, checks=checks, **odd)).manifest.key
    for command in (["list"], ["doctor"], ["show", key], ["explain", key, key]):
        assert main([*command, "--store", str(store.root)]) == 0
    assert main(["verify", key, "--rebuild", "--store", str(store.root)]) == 1
    assert "Traceback" not in capsys.readouterr().err
