"""Loading from a collection and from a lockfile, over HTTP, by real compiled code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hub_fixtures import settings, small_hub
from hub_state import Fault, SmallHub
from torch import nn

import aotbuild
from aotbuild.cache.artifact import Entry
from aotbuild.cache.card import Facts
from aotbuild.cache.collection import INDEX, Index
from aotbuild.cache.hub import Hub
from aotbuild.cache.lockfile import Lock
from aotbuild.cache.publish import publish
from aotbuild.cache.store import Store
from aotbuild.cli import main
from aotbuild.errors import NoArtifactError, SourceError
from aotbuild.loaders.blocks import identify_block

from . import making, nets
from .conftest import Kit

__all__ = ["small_hub"]

NAME = "org/nets"
Loader = Callable[..., aotbuild.Loaded]


@pytest.fixture
def load(kit: Kit, tmp_path: Path) -> Loader:
    """`aotbuild.load` of a pipeline of one component into an empty store."""

    def loaded(source: object, module: nn.Module, **options: Any) -> aotbuild.Loaded:
        store = options.pop("store", tmp_path / "here")
        found = aotbuild.load(SimpleNamespace(net=module), source, store=store, **options)
        kit.loaded.append(found)
        return found

    return loaded


def push(kit: Kit) -> str:
    entries = [e for e in kit.store.entries() if isinstance(e, Entry)]
    return publish(Hub(pause_s=0.01), NAME, entries, Facts(), pause_s=0.01).commit


def lock(small_hub: SmallHub, path: Path) -> Path:
    repo = small_hub.repos[NAME]
    index = Index.from_bytes(repo.commits[repo.head][INDEX])
    Lock(repository=NAME, revision=repo.head, items=index.items).write(path)
    return path


def hits(loaded: aotbuild.Loaded) -> int:
    return sum(loaded.metrics()["net"]["hits"].values())


def foreign(fields: dict[str, Any]) -> None:
    fields["target"] = replace(fields["target"], processor="s390x")


def test_load_fetches_the_index_and_what_serves_and_nothing_else(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    wanted = kit.net(size=16)
    kit.net(size=24, change=foreign)
    commit = push(kit)
    small_hub.log.clear()
    module, call = nets.net(seed=3), nets.call(return_dict=False)
    expected = module(**call)[0]

    loaded = load(NAME, module, revision=commit)

    torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)
    assert hits(loaded) == 1
    assert small_hub.fetched() == [
        INDEX, f"{wanted.folder}/manifest.json", f"{wanted.folder}/package.pt2",
    ]  # fmt: skip
    assert "s390x" in loaded.report()
    assert f"{NAME}@{commit}" in loaded.report()


def test_load_asks_for_nothing_twice_when_it_was_here_before(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    kit.net()
    commit = push(kit)
    load(NAME, nets.net(), revision=commit)
    small_hub.log.clear()
    load(NAME, nets.net(), revision=commit)
    assert small_hub.log == []


def test_load_fetches_every_call_once_and_code_before_weights(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    first, second = kit.net(size=16), kit.net(size=24)
    packed = kit.net(size=16, pack=nets.net())
    assert packed.key != first.key
    commit = push(kit)
    small_hub.log.clear()
    load(NAME, nets.net(), revision=commit)
    fetched = {Path(f).parent.name for f in small_hub.fetched()} - {""}
    assert fetched == {Path(m.folder).name for m in (first, second)}


@pytest.mark.parametrize("revision", [None, "main", "0123456"])
def test_load_shows_the_commit_to_paste_when_the_revision_is_none(
    small_hub: SmallHub, kit: Kit, load: Loader, revision: str | None
) -> None:
    kit.net()
    commit = push(kit)
    with pytest.raises(SourceError, match="allow_unpinned") as caught:
        load(NAME, nets.net(), revision=revision)
    assert f"    revision={commit!r}" in str(caught.value).splitlines()
    assert not any("resolve" in path for _, path, _ in small_hub.log)


def test_load_takes_a_branch_when_that_is_allowed(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    kit.net()
    commit = push(kit)
    assert commit in load(NAME, nets.net(), allow_unpinned=True).report()


@pytest.mark.parametrize("kind", ["other", "short", "404"])
def test_load_maps_nothing_when_the_hub_sends_something_else(
    small_hub: SmallHub, kit: Kit, load: Loader, tmp_path: Path, kind: str
) -> None:
    manifest = kit.net()
    commit = push(kit)
    small_hub.faults.append(Fault(manifest.package.sha256, kind, 10**6))
    module = nets.net()
    with pytest.raises(NoArtifactError):
        load(NAME, module, revision=commit, fallback="error")
    assert "forward" not in vars(module)
    assert list(Store(tmp_path / "here").entries()) == []


@pytest.mark.parametrize("kind", ["404", "500"])
def test_load_takes_the_second_best_when_the_best_cannot_be_fetched(
    small_hub: SmallHub, kit: Kit, load: Loader, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    best, second = kit.net(), kit.net(verified=False)
    commit = push(kit)
    small_hub.faults.append(Fault(f"{best.folder}/manifest.json", kind, 10**6))

    loaded = load(NAME, nets.net(), revision=commit)

    (artifact,) = loaded.to_json()["units"]["net"]["artifacts"]
    assert artifact["key"] == second.key
    (warned,) = (r.getMessage() for r in caplog.records if "tried instead" in r.getMessage())
    assert best.key[:12] in warned
    assert second.key[:12] in warned
    assert f"{best.key[:12]} (" in loaded.report()


def test_load_takes_nothing_else_when_the_best_was_altered(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    best = kit.net()
    kit.net(verified=False)
    commit = push(kit)
    small_hub.faults.append(Fault(f"{best.folder}/manifest.json", "other", 10**6))

    with pytest.raises(NoArtifactError, match="sent another"):
        load(NAME, nets.net(), revision=commit, fallback="error")


def test_load_is_refused_when_the_index_was_altered(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    kit.net()
    commit = push(kit)
    small_hub.faults.append(Fault(INDEX, "other", 10**6))
    with pytest.raises(aotbuild.ManifestError, match=r"aotbuild\.json of org/nets"):
        load(NAME, nets.net(), revision=commit)
    small_hub.faults.clear()  # what the client keeps of it harms nobody later
    assert "swapped" in load(NAME, nets.net(), revision=commit).report()


def test_manifest_decides_when_the_index_promises_too_much(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    kit.net(change=foreign)
    push(kit)
    repo = small_hub.repos[NAME]
    (item,) = Index.from_bytes(repo.commits[repo.head][INDEX]).items
    lie = replace(item, target=making.machine())
    files = {n.replace(item.folder, lie.folder): d for n, d in repo.commits[repo.head].items()}
    commit = repo.add({**files, INDEX: Index((lie,)).to_bytes()})
    with pytest.raises(NoArtifactError, match="s390x"):
        load(NAME, nets.net(), revision=commit, fallback="error")


def test_lockfile_loads_without_the_hub_when_the_store_has_it(
    small_hub: SmallHub, kit: Kit, load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.net()
    kit.net(size=24, change=foreign)
    push(kit)
    path = lock(small_hub, tmp_path / "aotbuild.lock")
    load(path, nets.net()).restore()
    small_hub.log.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    before = sorted((tmp_path / "here").rglob("*"))

    module, call = nets.net(), nets.call(return_dict=False)
    loaded = load(str(path), module)
    module(**call)

    assert hits(loaded) == 1
    assert small_hub.log == []
    assert sorted((tmp_path / "here").rglob("*")) == before


def test_lockfile_serves_what_is_here_when_the_hub_is_out_of_reach(
    small_hub: SmallHub, kit: Kit, load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.net(size=16)
    push(kit)
    load(lock(small_hub, tmp_path / "first.lock"), nets.net()).restore()
    kit.net(size=24)
    push(kit)
    path = lock(small_hub, tmp_path / "second.lock")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    module = nets.net()
    loaded = load(path, module)
    module(**nets.call(size=16, return_dict=False))

    assert hits(loaded) == 1
    assert "the Hub can't be asked" in loaded.report()
    with pytest.raises(NoArtifactError, match="aotbuild prefetch"):
        load(path, nets.net(), store=tmp_path / "empty", fallback="error")


def test_lockfile_needs_no_revision(small_hub: SmallHub, kit: Kit, tmp_path: Path) -> None:
    kit.net()
    push(kit)
    path = lock(small_hub, tmp_path / "aotbuild.lock")
    with pytest.raises(SourceError, match="is local"):
        aotbuild.load(SimpleNamespace(), path, revision="a" * 40)


def test_load_component_fetches_packed_artifacts_alone(
    small_hub: SmallHub, kit: Kit, tmp_path: Path
) -> None:
    module, call = nets.net(seed=5), nets.call(return_dict=False)
    kit.net()
    packed = kit.net(pack=module)
    commit = push(kit)
    small_hub.log.clear()

    stand_in = aotbuild.load_component(NAME, revision=commit, store=tmp_path / "here")

    torch.testing.assert_close(stand_in(**call)[0], module(**call)[0], rtol=1e-4, atol=1e-5)
    assert {str(Path(f).parent) for f in small_hub.fetched()} == {".", packed.folder}


def test_component_without_weights_takes_packed_artifacts_from_the_hub(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    module, call = nets.net(seed=5), nets.call(return_dict=False)
    kit.net()
    packed = kit.net(pack=module)
    commit = push(kit)
    small_hub.log.clear()
    with torch.device("meta"):
        hollow = type(module)()
    hollow.eval()

    loaded = load(NAME, hollow, revision=commit)

    assert {str(Path(f).parent) for f in small_hub.fetched()} == {".", packed.folder}
    torch.testing.assert_close(hollow(**call)[0], module(**call)[0], rtol=1e-4, atol=1e-5)
    assert hits(loaded) == 1


FRESH = """
import sys, types, torch, aotbuild
sys.path.insert(0, {here!r})
from tests.loaders import nets
module, call = nets.net(seed=3), nets.call(return_dict=False)
with torch.no_grad():
    expected = module(**call)[0]
    loaded = aotbuild.load(types.SimpleNamespace(net=module), {name!r}, revision={commit!r})
    torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)
assert sum(loaded.metrics()["net"]["hits"].values()) == 1, loaded.report()
assert not {{"click", "aotbuild.build"}} & set(sys.modules)
"""


def test_fresh_process_loads_by_the_clients_own_settings(
    small_hub: SmallHub, kit: Kit, tmp_path: Path
) -> None:
    kit.net()
    commit = push(kit)
    code = FRESH.format(here=str(Path(__file__).parents[2]), name=NAME, commit=commit)
    environment = {
        **os.environ, **settings(small_hub, tmp_path), "AOTBUILD_STORE": str(tmp_path / "here"),
    }  # fmt: skip
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_load_takes_what_a_trusted_key_signed_and_no_other(
    small_hub: SmallHub, kit: Kit, load: Loader, tmp_path: Path
) -> None:
    ed25519 = pytest.importorskip(
        "cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra `sign`"
    )
    ours, stranger = (ed25519.Ed25519PrivateKey.generate() for _ in range(2))
    kit.net(size=16)
    entries = [e for e in kit.store.entries() if isinstance(e, Entry)]
    publish(Hub(pause_s=0.01), NAME, entries, Facts(), key=ours, pause_s=0.01)
    kit.net(size=24)
    commit = push(kit)
    key = ours.public_key().public_bytes_raw().hex()
    path = lock(small_hub, tmp_path / "aotbuild.lock")

    for source, options in ((NAME, {"revision": commit}), (path, {})):
        module = nets.net()
        loaded = load(source, module, trusted_keys=key, components="net", **options)
        module(**nets.call(size=16, return_dict=False))
        assert hits(loaded) == 1
        assert "isn't signed" in loaded.report()
        assert len(loaded.to_json()["rejected"]) == 1
        with pytest.raises(NoArtifactError, match="isn't among the trusted keys"):
            load(
                source,
                nets.net(),
                trusted_keys=[stranger.public_key().public_bytes_raw().hex()],
                fallback="error",
                **options,
            )
    with pytest.raises(SourceError, match="is a folder"):
        load(kit.store.root, nets.net(), trusted_keys=[key])


def test_load_takes_collections_of_allowed_owners_alone(
    small_hub: SmallHub, kit: Kit, load: Loader, tmp_path: Path
) -> None:
    kit.net()
    commit = push(kit)
    path = lock(small_hub, tmp_path / "aotbuild.lock")
    small_hub.log.clear()
    with pytest.raises(SourceError, match="allowed are us"):
        load(NAME, nets.net(), revision=commit, owners=["us"])
    with pytest.raises(SourceError, match="allowed are us"):
        load(path, nets.net(), owners=["us"])
    assert small_hub.log == []
    with pytest.raises(SourceError, match="allowed are organisation"):
        load(NAME, nets.net(), revision=commit, owners="organisation")
    load(NAME, nets.net(), revision=commit, owners="org").restore()
    load(NAME, nets.net(), revision=commit, owners=["us", "org"])


START = """
import sys, types, torch, aotbuild
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.loaders import nets
module, call = nets.net(seed=3), nets.call(return_dict=False)
with torch.no_grad():
    expected = module(**call)[0]
    loaded = aotbuild.load(types.SimpleNamespace(net=module), Path({lock!r}), fallback="error")
    torch.testing.assert_close(module(**call)[0], expected, rtol=1e-4, atol=1e-5)
assert sum(loaded.metrics()["net"]["hits"].values()) == 1, loaded.report()
"""


@pytest.mark.parametrize("options", ["ro", "ro,noexec"])
def test_start_writes_nothing_and_asks_nobody_after_prefetch(
    small_hub: SmallHub, kit: Kit, tmp_path: Path, options: str
) -> None:
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("needs a mount namespace: unshare isn't there or isn't allowed")
    kit.net()
    push(kit)
    path = lock(small_hub, tmp_path / "aotbuild.lock")
    there, mounted, home = (tmp_path / n for n in ("there", "mounted", "home"))
    assert main(["prefetch", str(path), "--store", str(there)]) == 0
    for folder in (mounted, home):
        folder.mkdir()
    small_hub.log.clear()
    bind = 'mount --bind "$THERE" "$AOTBUILD_STORE"'
    remount = 'mount -o "remount,bind,$HOW" "$AOTBUILD_STORE"'
    code = START.format(root=str(Path(__file__).parents[2]), lock=str(path))
    environment = {
        **os.environ, **settings(small_hub, home), "HF_HUB_OFFLINE": "1", "THERE": str(there),
        "AOTBUILD_STORE": str(mounted), "HOW": options, "PYTHON": sys.executable, "CODE": code,
    }  # fmt: skip
    script = f'{bind} && {remount} && exec "$PYTHON" -c "$CODE"'
    done = subprocess.run(
        [*unshare, "sh", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []
    assert small_hub.log == []


def test_load_fetches_what_the_blocks_need_when_nothing_of_the_whole_fits(
    small_hub: SmallHub, kit: Kit, load: Loader
) -> None:
    def regional(fields: dict[str, Any]) -> None:
        fields.update(scope="regional", module=identify_block(nets.net()))

    def otherwise(fields: dict[str, Any]) -> None:
        regional(fields)
        fields["state"] = {**fields["state"], "fused": [""]}

    wanted = kit.net(component="net.Net", change=regional)
    kit.net(component="net.Net", change=otherwise)
    kit.net(size=24, change=foreign)
    commit = push(kit)
    small_hub.log.clear()
    module, call = nn.Sequential(nets.net(seed=3), nets.net(seed=4)), nets.call(return_dict=False)
    expected = [block(**call)[0] for block in module]
    loaded = load(NAME, module, revision=commit, fallback="error")
    for block, answer in zip(module, expected, strict=True):
        torch.testing.assert_close(block(**call)[0], answer, rtol=1e-4, atol=1e-5)
    assert loaded.metrics()["net.Net"]["hits"] == {wanted.key[:12]: 2}
    fetched = {Path(f).parent.name for f in small_hub.fetched()} - {""}
    assert fetched == {Path(wanted.folder).name}
