from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import CPU, GPU, make_manifest, make_packed, record, sha256, stage
from hub_fixtures import settings
from hub_state import Fault, Repo, SmallHub

from aotbuild.cache.artifact import Entry
from aotbuild.cache.collection import Index
from aotbuild.cache.item import describe
from aotbuild.cache.lockfile import read_lock
from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.probe import cpu_level

NAME = "org/sdxl-aot"
RECIPE: dict[str, Any] = {
    "name": "sdxl",
    "dtype": "bf16",
    "call": {"resolution": "1024x1024", "batch": 1},
}
BASE = "stabilityai/stable-diffusion-xl-base-1.0"


def add(store: Store, **changes: Any) -> Entry:
    changes = {"recipe": RECIPE, "target": replace(CPU, arch=cpu_level()), **changes}
    with store.staging() as root:
        return store.add(stage(root, **changes))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The document that a command prints; it must succeed."""
    code = main([*map(str, arguments), "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command says that is refused; in one paragraph, with exit code 2."""
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_what_was_pushed_is_pulled_into_another_store(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, other = add(store), add(store, salt="b", component="vae.decode")
    pushed = run(capsys, "push", NAME, "--all", "--store", store.root)
    assert pushed["artifacts"] == 2

    small_hub.log.clear()
    there = tmp_path / "there"
    arguments = ["--component", "unet", "--revision", pushed["revision"], "--store", there]
    pulled = run(capsys, "pull", NAME, *arguments)

    assert [a["key"] for a in pulled["artifacts"]] == [wanted.manifest.key]
    (found,) = Store(there).entries()
    assert isinstance(found, Entry)
    assert found.manifest == wanted.manifest
    folder = wanted.manifest.folder
    files = [f"{folder}/manifest.json", f"{folder}/package.pt2"]
    assert small_hub.fetched() == ["aotbuild.json", *files]
    assert other.manifest.folder not in str(small_hub.log)


def test_push_takes_what_the_options_name(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    unet, vae = add(store), add(store, salt="b", component="vae.decode", target=GPU)
    add(store, salt="c", component="vae.encode", target=GPU)
    one = run(capsys, "push", NAME, unet.manifest.key[:12], "--store", store.root)
    two = run(
        capsys, "push", NAME, "--gpu", "a100", "--component", "vae.decode", "--recipe", "sdxl",
        "--store", store.root,
    )  # fmt: skip
    assert [a["key"] for a in one["added"]] == [unet.manifest.key]
    assert [a["key"] for a in two["added"]] == [vae.manifest.key]
    assert two["artifacts"] == 2


def test_push_is_refused_when_nothing_is_named_or_nothing_is_there(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store)
    assert "--all" in fail(capsys, "push", NAME, "--store", store.root)
    assert "begins with 'zz'" in fail(capsys, "push", NAME, "zz", "--store", store.root)
    assert "none that all" in fail(capsys, "push", NAME, "--recipe", "flux", "--store", store.root)
    assert small_hub.repos == {}


def test_push_is_refused_when_an_artifact_was_altered(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    package = add(store).folder / "package.pt2"
    data = bytearray(package.read_bytes())
    data[-1] ^= 1
    package.write_bytes(data)
    assert main(["push", NAME, "--all", "--store", str(store.root)]) == 1
    assert "altered" in capsys.readouterr().err
    assert small_hub.repos == {}


# Licences


def base(small_hub: SmallHub, name: str, **changes: Any) -> None:
    card = changes.pop("card", {"license": "openrail++"})
    small_hub.repos[name] = Repo(card=card, **changes)
    small_hub.repos[name].add({"model_index.json": b"{}"})


def test_card_takes_licence_and_base_from_the_checkpoint(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    base(small_hub, BASE)
    add(store, provenance={"checkpoint": BASE})
    commit = run(capsys, "push", NAME, "--all", "--store", store.root)["revision"]
    text = small_hub.repos[NAME].commits[commit]["README.md"].decode()
    assert 'license: "openrail++"' in text
    assert f'base_model: ["{BASE}"]' in text


REFUSED = {
    "known": ("black-forest-labs/FLUX.1-dev", {}, "doesn't let everybody"),
    "gated": ("org/base", {"gated": True}, "is gated"),
    "non-commercial": ("org/base", {"card": {"license": "cc-by-nc-4.0"}}, "cc-by-nc-4.0"),
    "by name": (
        "org/base",
        {"card": {"license": "other", "license_name": "some-community"}},
        "some-community",
    ),
    "other without a name": ("org/base", {"card": {"license": "other"}}, "is under other"),
    "unknown": ("org/base", {"card": {"license": "unknown"}}, "is under unknown"),
    "spelt otherwise": ("org/base", {"card": {"license": "CC_BY_NC 4.0"}}, "CC_BY_NC 4.0"),
    "one of several": ("org/base", {"card": {"license": ["mit", "cc-by-nc-4.0"]}}, "cc-by-nc"),
    "other among several": ("org/base", {"card": {"license": ["mit", "other"]}}, "'other'"),
    "no licence": ("org/base", {"card": {}}, "names no licence"),
    "not there": ("org/nothing", None, "says nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_weights_go_to_private_repositories_alone_when_they_are_not_free(
    case: str, small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    name, changes, words = REFUSED[case]
    if changes is not None:
        base(small_hub, name, **changes)
    packed = make_packed(b"weights", checkpoint=name)
    with store.staging() as root:
        folder = stage(root, recipe=RECIPE, packed=b"weights")
        manifest = make_manifest(recipe=RECIPE, packed=packed)
        package = (folder / "package.pt2").read_bytes()
        file = replace(manifest.package, sha256=sha256(package), bytes=len(package))
        (folder / "manifest.json").write_bytes(replace(manifest, package=file).to_bytes())
        store.add(folder)

    assert words in fail(capsys, "push", NAME, "--all", "--store", store.root)
    assert NAME not in small_hub.repos
    run(capsys, "push", NAME, "--all", "--private", "--store", store.root)
    assert small_hub.repos[NAME].private


def test_weights_are_public_when_their_licence_is_free(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    base(small_hub, "org/model")
    add(store, packed=b"weights")
    assert run(capsys, "push", NAME, "--all", "--store", store.root)["artifacts"] == 1
    assert not small_hub.repos[NAME].private


# Pinning, locking


def test_pull_shows_the_commit_to_paste_when_the_revision_is_none(
    small_hub: SmallHub, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store)
    commit = run(capsys, "push", NAME, "--all", "--store", store.root)["revision"]
    for arguments in ([], ["--revision", "main"]):
        said = fail(capsys, "pull", NAME, *arguments)
        assert f"--revision {commit}" in said
        assert "--allow-unpinned" in said
    assert f"--revision {commit}" in fail(capsys, "pull", NAME, "--revision", commit[:12])
    pulled = run(capsys, "pull", NAME, "--allow-unpinned", "--store", store.root)
    assert pulled["revision"] == commit


def test_prefetch_brings_what_a_lockfile_names_and_a_start_needs(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = add(store)
    add(store, salt="b", target=GPU)
    run(capsys, "push", NAME, "--all", "--store", store.root)
    path = tmp_path / "aotbuild.lock"
    locked = run(capsys, "lock", NAME, "--gpu", "cpu", "--out", path)
    assert locked["keys"] == [entry.manifest.key]
    assert read_lock(path).revision == small_hub.repos[NAME].head

    add(store, salt="later")
    run(capsys, "push", NAME, "--all", "--store", store.root)
    there = Store(tmp_path / "there")
    run(capsys, "prefetch", path, "--store", there.root)
    (found,) = there.entries()
    assert isinstance(found, Entry)
    assert found.manifest == entry.manifest
    library = there.root / "libraries" / f"{entry.manifest.library.sha256}.so"
    assert library.is_file()

    small_hub.log.clear()
    run(capsys, "prefetch", path, "--store", there.root)
    assert small_hub.log == []


def test_prefetch_is_refused_when_the_hub_has_other_bytes_by_now(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = add(store)
    run(capsys, "push", NAME, "--all", "--store", store.root)
    path = tmp_path / "aotbuild.lock"
    run(capsys, "lock", NAME, "--out", path)
    small_hub.faults.append(Fault(entry.manifest.package.sha256, "other", 10**6))
    there = tmp_path / "there"
    assert main(["prefetch", str(path), "--store", str(there)]) == 1
    assert "than the index says, twice" in capsys.readouterr().err
    assert list(Store(there).entries()) == []


OFFLINE = """
import sys
from aotbuild.cli import main
code = main(sys.argv[1:])
heavy = {"torch", "diffusers", "numpy"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


def python(small_hub: SmallHub, folder: Path, *arguments: object, **more: str) -> Any:
    environment = {**os.environ, **settings(small_hub, folder), **more}
    return subprocess.run(
        [sys.executable, "-c", OFFLINE, *map(str, arguments)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_commands_import_no_torch_and_prefetch_needs_no_network_when_all_is_here(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store)
    for arguments in (
        ("push", NAME, "--all"),
        ("pull", NAME, "--allow-unpinned"),
        ("lookup", "sdxl", "--gpu", "cpu", "--from", NAME),
        ("lock", NAME, "--out", tmp_path / "aotbuild.lock"),
        ("prefetch", tmp_path / "aotbuild.lock"),
    ):
        where = () if arguments[0] == "lock" else ("--store", store.root)
        done = python(small_hub, tmp_path, *arguments, *where)
        assert done.returncode == 0, done.stderr
    small_hub.log.clear()
    lock = tmp_path / "aotbuild.lock"
    done = python(small_hub, tmp_path, "prefetch", lock, "--store", store.root, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    empty = tmp_path / "empty"
    done = python(small_hub, tmp_path, "prefetch", lock, "--store", empty, HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    assert "the Hub can't be asked" in done.stderr
    assert "Traceback" not in done.stderr
    assert small_hub.log == []


# Looking up


def test_lookup_says_what_is_there_and_how_to_build_the_rest(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    entry = add(store, target=GPU)
    store.add_verification(entry, record(entry.manifest.key, GPU))
    add(store, salt="other size", target=GPU, recipe={**RECIPE, "call": {"resolution": "768x768"}})
    commit = run(capsys, "push", NAME, "--all", "--store", store.root)["revision"]
    monkeypatch.setenv("AOTBUILD_COLLECTIONS", NAME)
    empty = tmp_path / "empty"

    asked = ["lookup", "sdxl", "--gpu", "a100", "--resolution", "1024x1024", "--store", empty]
    found = run(capsys, *asked)

    (artifact,) = found["artifacts"]
    assert (artifact["key"], artifact["revision"]) == (entry.manifest.key, commit)
    assert (artifact["cached"], artifact["verified"]) == (False, True)
    (missing,) = found["missing"]
    assert missing["component"] == "vae.decode"
    assert missing["command"] == "aotbuild build sdxl --gpu a100 --resolution 1024x1024"
    assert main([*map(str, asked)]) == 0
    table = capsys.readouterr().out
    assert f"{NAME} at {commit}: 2 artifacts" in table
    assert entry.manifest.key[:12] in table
    assert "aotbuild build sdxl --gpu a100 --resolution 1024x1024" in table
    assert not run(capsys, *asked[:3], "h100", *asked[4:])["artifacts"]
    assert run(capsys, *asked[:3], "l4", *asked[4:], "--from", store.root)["artifacts"]


def test_lookup_is_refused_when_the_source_is_no_collection(
    small_hub: SmallHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base(small_hub, "org/model")
    asked = ["lookup", "sdxl", "--gpu", "a100", "--store", tmp_path, "--from"]
    assert "isn't a collection" in fail(capsys, *asked, "org/model")
    assert "no repository org/none" in fail(capsys, *asked, "org/none")
    assert "no folder or lockfile" in fail(capsys, *asked, tmp_path / "none")


def test_lookup_takes_less_than_two_seconds_when_the_collection_has_500(
    small_hub: SmallHub, tmp_path: Path
) -> None:
    manifests = [
        make_manifest(salt=str(n), recipe=RECIPE, target=GPU, provenance={"n": n})
        for n in range(500)
    ]
    index, _ = Index().merged(describe(m, {}, ()) for m in manifests)
    small_hub.repos[NAME] = Repo()
    small_hub.repos[NAME].add({"aotbuild.json": index.to_bytes()})

    begun = time.monotonic()
    asked = ["lookup", "sdxl", "--gpu", "a100", "--from", NAME, "--store", tmp_path / "none"]
    done = python(small_hub, tmp_path, *asked)
    took_s = time.monotonic() - begun

    assert done.returncode == 0, done.stderr
    assert "500 artifacts" in done.stdout
    assert took_s < 2 or os.getloadavg()[0] > os.cpu_count()  # a busy machine says nothing


def test_prefetch_writes_nothing_when_all_is_there(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store)
    run(capsys, "push", NAME, "--all", "--store", store.root)
    path = tmp_path / "aotbuild.lock"
    run(capsys, "lock", NAME, "--out", path)
    run(capsys, "prefetch", path, "--store", store.root)
    copy = tmp_path / "copy"
    shutil.copytree(store.root, copy)
    before = sorted(p.relative_to(copy) for p in copy.rglob("*"))
    run(capsys, "prefetch", path, "--store", copy)
    assert sorted(p.relative_to(copy) for p in copy.rglob("*")) == before


def test_prune_keeps_what_a_lockfile_names(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = add(store)
    run(capsys, "push", NAME, "--all", "--store", store.root)
    path = tmp_path / "aotbuild.lock"
    run(capsys, "lock", NAME, "--out", path)
    gone = add(store, salt="b")
    pruned = run(capsys, "prune", "--max-size", "0kB", "--keep", path, "--store", store.root)
    assert [r["key"] for r in pruned["removed"]] == [gone.manifest.key]
    assert [e.folder for e in store.entries()] == [kept.folder]


def test_doctor_judges_a_collection_by_its_index_alone(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    mine = replace(CPU, arch=cpu_level(), torch=torch.__version__)
    entry, other = add(store, target=mine), add(store, salt="b", target=GPU)
    commit = run(capsys, "push", NAME, "--all", "--store", store.root)["revision"]
    lock = tmp_path / "aotbuild.lock"
    run(capsys, "lock", NAME, "--out", lock)
    small_hub.log.clear()

    found = run(capsys, "doctor", NAME, "--store", store.root)
    verdicts = {a["key"]: a["verdict"] for a in found["artifacts"]}
    assert verdicts == {entry.manifest.key: "accepted", other.manifest.key: "rejected"}
    assert found["revision"] == commit
    assert small_hub.fetched() in ([], ["aotbuild.json"])
    assert main(["doctor", str(lock)]) == 0
    said = capsys.readouterr().out
    assert f"accepted  {entry.manifest.component}" in said
    assert commit in said


def test_pull_brings_records_that_were_added_when_the_artifact_is_here(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = add(store)
    run(capsys, "push", NAME, "--all", "--store", store.root)
    there = Store(tmp_path / "there")
    run(capsys, "pull", NAME, "--allow-unpinned", "--store", there.root)
    store.add_verification(entry, record(entry.manifest.key))
    run(capsys, "push", NAME, "--all", "--store", store.root)
    run(capsys, "pull", NAME, "--allow-unpinned", "--store", there.root)
    found = there.get(entry.manifest.key)
    assert found is not None
    assert there.verifications(found) == store.verifications(entry)


def test_lockfile_holds_when_the_hub_shows_an_older_index(
    small_hub: SmallHub, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(store)
    old = run(capsys, "push", NAME, "--all", "--store", store.root)["revision"]
    newer = add(store, salt="newer")
    now = run(capsys, "push", NAME, "--all", "--store", store.root)["revision"]
    path = tmp_path / "aotbuild.lock"
    run(capsys, "lock", NAME, newer.manifest.key, "--out", path)
    commits = small_hub.repos[NAME].commits
    commits[now]["aotbuild.json"] = commits[old]["aotbuild.json"]

    fetched = run(capsys, "prefetch", path, "--store", tmp_path / "there")
    assert [a["key"] for a in fetched["artifacts"]] == [newer.manifest.key]
    commits[now] = commits[old]
    assert main(["prefetch", str(path), "--store", str(tmp_path / "empty")]) == 2
    assert "The Hub has no manifest.json" in capsys.readouterr().err.replace(
        f"{newer.manifest.folder}/", ""
    )
