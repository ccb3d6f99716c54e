from __future__ import annotations

import hashlib
import resource
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import record, stage
from hub_state import Fault, Repo, SmallHub

from aotbuild.cache.artifact import Entry
from aotbuild.cache.card import Facts
from aotbuild.cache.collection import INDEX, Index
from aotbuild.cache.fetch import fetch
from aotbuild.cache.files import FileRecord
from aotbuild.cache.hub import Hub
from aotbuild.cache.hub_errors import BusyError
from aotbuild.cache.publish import Published, publish, read_index
from aotbuild.cache.store import Store
from aotbuild.errors import AotbuildError, HubError, IntegrityError, SourceError, StoreError

NAME = "org/collection"


def add(store: Store, **changes: Any) -> Entry:
    with store.staging() as root:
        return store.add(stage(root, **changes))


def push(hub: Hub, *entries: Entry, **options: Any) -> Published:
    return publish(hub, NAME, entries, Facts(), pause_s=0.01, **options)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


def test_published_artifact_is_fetched_whole_when_it_is_pushed(
    small_hub: SmallHub, hub: Hub, store: Store, other: Store
) -> None:
    entry = add(store, packed=b"weights" * 100)
    store.add_verification(entry, record(entry.manifest.key))
    done = push(hub, entry)

    there = hub.look(NAME)
    assert done.commit == there.commit == small_hub.repos[NAME].head
    (item,) = read_index(hub, there).items
    assert {f"{item.folder}/{f.name}" for f in item.files} | {"aotbuild.json", "README.md"} <= (
        there.files
    )
    found = fetch(hub, other, NAME, there.commit, item)
    other.verify(found)
    assert found.manifest == entry.manifest
    assert other.verifications(found) == store.verifications(entry)
    assert not list((other.root / "staging").iterdir())


def test_large_files_go_by_lfs_and_no_token_reaches_the_cdn(
    small_hub: SmallHub, hub: Hub, store: Store, other: Store
) -> None:
    entry = add(store)
    push(hub, entry)
    fetch(hub, other, NAME, hub.look(NAME).commit, read_index(hub, hub.look(NAME)).items[0])

    assert small_hub.blobs.keys() == {entry.manifest.package.sha256}
    asked = [(m, a) for m, p, a in small_hub.log if p == f"/{entry.manifest.package.sha256}"]
    assert [m for m, _ in asked] == ["PUT", "GET"]
    assert {a for _, a in asked} == {None}


def test_push_sends_only_what_is_new_when_something_is_there(
    small_hub: SmallHub, hub: Hub, store: Store
) -> None:
    first, second = add(store, salt="a"), add(store, salt="b")
    assert len(push(hub, first).added) == 1
    done = push(hub, first, second)
    assert [i.key for i in done.added] == [second.manifest.key]
    assert done.total == 2

    small_hub.log.clear()
    commit = small_hub.repos[NAME].head
    again = push(hub, first, second)
    assert (again.added, again.commit, again.total) == ((), commit, 2)
    assert not [p for _, p, _ in small_hub.log if "/commit/" in p or "batch" in p]

    store.add_verification(first, record(first.manifest.key))
    assert [i.key for i in push(hub, first).added] == [first.manifest.key]
    (item,) = (i for i in read_index(hub, hub.look(NAME)).items if i.key == first.manifest.key)
    assert [r.passed for r in item.records] == [True]


def test_push_adds_to_what_came_in_between_when_the_parent_has_moved(
    small_hub: SmallHub, hub: Hub, store: Store, tmp_path: Path
) -> None:
    theirs, ours = add(store, salt="theirs"), add(store, salt="ours")

    class Slow(Hub):
        """One that is overtaken once, between reading and committing."""

        def commit(self, *arguments: Any, **options: Any) -> str:
            if not overtaken:
                overtaken.append(push(hub, theirs).commit)
            return super().commit(*arguments, **options)

    overtaken: list[str] = []
    done = push(Slow(pause_s=0.01), ours)

    assert done.tries == 2
    keys = {i.key for i in read_index(hub, hub.look(NAME)).items}
    assert keys == {theirs.manifest.key, ours.manifest.key}
    puts = [p for m, p, _ in small_hub.log if m == "PUT"]
    assert len(puts) == len(set(puts))


def test_eight_pushes_at_once_lose_nothing(small_hub: SmallHub, store: Store, other: Store) -> None:
    entries = [add(store, salt=str(n), library=bytes([n]) * 1000) for n in range(8)]
    failed: list[BaseException] = []

    def one(entry: Entry) -> None:
        try:
            publish(Hub(pause_s=0.01), NAME, [entry], Facts(), pause_s=0.05)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=one, args=(e,)) for e in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    hub = Hub(pause_s=0.01)
    there = hub.look(NAME)
    items = read_index(hub, there).items
    assert {i.key for i in items} == {e.manifest.key for e in entries}
    for item in items:
        other.verify(fetch(hub, other, NAME, there.commit, item))
    assert there.card == {} or there.card
    assert all(k[:12] in small_hub.repos[NAME].commits[there.commit]["README.md"].decode()
               for k in (i.key for i in items))  # fmt: skip


def test_push_is_refused_when_the_key_is_published_with_other_bytes(
    small_hub: SmallHub, hub: Hub, store: Store, other: Store
) -> None:
    push(hub, add(store, library=b"a" * 100))
    with pytest.raises(IntegrityError, match="isn't reproducible"):
        push(hub, add(other, library=b"b" * 100))


def test_push_is_refused_when_nobody_is_logged_in(
    small_hub: SmallHub, hub: Hub, store: Store
) -> None:
    small_hub.tokens.clear()
    with pytest.raises(SourceError, match="hf auth login"):
        push(hub, add(store))


# Fetching


@pytest.fixture
def pushed(small_hub: SmallHub, hub: Hub, store: Store) -> tuple[str, Index]:
    push(hub, add(store, library=bytes(range(256)) * 4096))
    there = hub.look(NAME)
    return there.commit, read_index(hub, there)


PASSING = [
    ("drop", "GET", 1), ("short", "GET", 1), ("other", "GET", 1), ("500", "GET", 2),
    ("429", "GET", 1), ("503", "HEAD", 2), ("429", "HEAD", 1),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method", "times"), PASSING)
@pytest.mark.parametrize("file", ["manifest.json", "package.pt2"])
def test_file_is_asked_for_again_when_the_fault_passes(
    small_hub: SmallHub, hub: Hub, other: Store, pushed: tuple[str, Index],
    kind: str, method: str, times: int, file: str,
) -> None:  # fmt: skip
    commit, index = pushed
    (item,) = index.items
    record = next(f for f in item.files if f.name == file)
    on_cdn = file == "package.pt2" and method == "GET"
    pattern = f"^/{record.sha256}$" if on_cdn else f"{file}$"
    small_hub.faults.append(Fault(pattern, kind, times, method))

    other.verify(fetch(hub, other, NAME, commit, item))

    assert small_hub.faults[0].times == 0


@pytest.mark.parametrize("kind", ["short", "other", "404"])
@pytest.mark.parametrize("file", ["manifest.json", "package.pt2"])
def test_nothing_is_added_when_the_fault_stays(
    small_hub: SmallHub, hub: Hub, other: Store, pushed: tuple[str, Index], kind: str, file: str
) -> None:
    commit, index = pushed
    (item,) = index.items
    record = next(f for f in item.files if f.name == file)
    pattern = f"^/{record.sha256}$" if file == "package.pt2" else f"{file}$"
    small_hub.faults.append(Fault(pattern, kind, 10**6))

    with pytest.raises(AotbuildError) as caught:
        fetch(hub, other, NAME, commit, item)

    assert "\n" not in str(caught.value)
    assert list(other.entries()) == []
    assert not list((other.root / "staging").iterdir())


def test_fetch_is_refused_when_the_manifest_is_another_artifacts(
    small_hub: SmallHub, hub: Hub, store: Store, other: Store, pushed: tuple[str, Index]
) -> None:
    commit, index = pushed
    (item,) = index.items
    files = small_hub.repos[NAME].commits[commit]
    stranger = add(store, salt="stranger")
    files[f"{item.folder}/manifest.json"] = stranger.manifest.to_bytes()
    with pytest.raises(IntegrityError, match="than the index says, twice"):
        fetch(hub, other, NAME, commit, item)


def test_store_is_asked_before_the_hub_is(
    small_hub: SmallHub, hub: Hub, store: Store, pushed: tuple[str, Index]
) -> None:
    small_hub.log.clear()
    fetch(hub, store, NAME, pushed[0], pushed[1].items[0])
    assert small_hub.log == []


def test_fetch_is_refused_when_the_store_has_the_key_with_other_bytes(
    hub: Hub, other: Store, pushed: tuple[str, Index]
) -> None:
    add(other, library=b"other")
    with pytest.raises(IntegrityError, match="aotbuild prune"):
        fetch(hub, other, NAME, pushed[0], pushed[1].items[0])


def test_fetch_is_refused_when_the_store_has_another_manifest_and_one_is_vouched_for(
    hub: Hub, other: Store, pushed: tuple[str, Index]
) -> None:
    commit, index = pushed
    (item,) = index.items
    mine = add(other, library=bytes(range(256)) * 4096, provenance={"checkpoint": "org/other"})
    assert mine.manifest.key == item.key
    assert fetch(hub, other, NAME, commit, item).manifest == mine.manifest
    with pytest.raises(IntegrityError, match=f"another manifest.*aotbuild prune {item.key[:12]}"):
        fetch(hub, other, NAME, commit, item, exact=True)
    other.prune(key=item.key)
    found = fetch(hub, other, NAME, commit, item, exact=True)
    assert found.manifest != mine.manifest
    assert fetch(hub, other, NAME, commit, item, exact=True) == found


def test_nothing_is_added_when_the_folder_holds_another_artifact(
    small_hub: SmallHub, hub: Hub, store: Store, other: Store, pushed: tuple[str, Index]
) -> None:
    commit, index = pushed
    (item,) = index.items
    stranger = add(store, salt="stranger", library=bytes(range(256)) * 4096)
    data = stranger.manifest.to_bytes()
    small_hub.repos[NAME].commits[commit][f"{item.folder}/manifest.json"] = data
    theirs = FileRecord(
        name="manifest.json", sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)
    )
    listed = [theirs if f.name == theirs.name else f for f in item.files]
    with pytest.raises(IntegrityError, match="of another key than the index says"):
        fetch(hub, other, NAME, commit, replace(item, files=tuple(listed)))
    assert list(other.entries()) == []


def test_file_of_another_commit_is_refused_when_the_hub_sends_it(
    small_hub: SmallHub, hub: Hub, pushed: tuple[str, Index]
) -> None:
    repo = small_hub.repos[NAME]
    first = repo.head
    with pytest.raises(SourceError, match="from another commit than main"):
        hub.read(NAME, "main", INDEX)
    assert hub.read(NAME, first, INDEX) == repo.commits[first][INDEX]


def test_full_disk_is_told_as_what_it_is(hub: Hub, other: Store, pushed: tuple[str, Index]) -> None:
    commit, index = pushed
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreError, match="File too large"):
            fetch(hub, other, NAME, commit, index.items[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(other.entries()) == []


def test_hub_says_what_to_do_when_it_refuses(small_hub: SmallHub, hub: Hub) -> None:
    small_hub.repos["org/gated"] = gated = Repo(gated=True)
    small_hub.repos["org/private"] = private = Repo(private=True)
    for repo in (gated, private):
        repo.add({"aotbuild.json": b"{}"})
    with pytest.raises(SourceError, match="no such revision"):
        hub.look("org/private", "f" * 40)
    small_hub.tokens.clear()
    with pytest.raises(SourceError, match="gated"):
        hub.read("org/gated", gated.head, "aotbuild.json")
    with pytest.raises(SourceError, match=r"HF_TOKEN.*'./FOLDER'"):
        hub.look("org/private")
    with pytest.raises(SourceError, match="organisation/name"):
        hub.look("a/b/c")


def test_hub_error_is_one_line_when_it_is_down(
    small_hub: SmallHub, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_hub.faults.append(Fault("/api/models", "500", 10**6))
    with pytest.raises(HubError, match="Try again later") as caught:
        hub.look(NAME)
    assert "\n" not in str(caught.value)
    assert len(small_hub.log) == 5


@pytest.mark.parametrize("endpoint", ["http://hub.invalid", "hub.invalid", ""])
def test_hub_error_names_the_network_when_the_host_is_unknown(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    with pytest.raises(HubError, match=r"can't be reached for org/.*HF_ENDPOINT"):
        hub.look(NAME)


@pytest.mark.parametrize("status", ["500", "429", "503"])
def test_push_commits_again_when_the_hub_failed_and_may_not_next_time(
    small_hub: SmallHub, hub: Hub, store: Store, status: str
) -> None:
    small_hub.faults.append(Fault("/commit/", status, 2, "POST"))
    done = push(hub, add(store))
    assert (len(done.added), done.tries) == (1, 3)


def test_push_finds_its_commit_when_only_the_answer_was_lost(
    small_hub: SmallHub, hub: Hub, store: Store
) -> None:
    class Deaf(Hub):
        """One that doesn't hear the answer to its first commit."""

        def commit(self, *arguments: Any, **options: Any) -> str:
            commit = super().commit(*arguments, **options)
            if not heard:
                heard.append(commit)
                raise BusyError("the connection broke")
            return commit

    heard: list[str] = []
    done = push(Deaf(pause_s=0.01), add(store))
    assert done.commit == heard[0] == small_hub.repos[NAME].head
    assert done.total == 1


def test_push_gives_up_with_one_line_when_the_hub_fails_for_good(
    small_hub: SmallHub, hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aotbuild.cache.publish.TRIES", 3)
    small_hub.faults.append(Fault("/commit/", "500", 10**6, "POST"))
    with pytest.raises(HubError, match="3 commits failed") as caught:
        push(hub, add(store))
    assert "\n" not in str(caught.value)
    assert list(small_hub.repos[NAME].commits) == [small_hub.repos[NAME].head]


def test_push_says_what_is_wrong_with_the_card_when_the_hub_refuses_it(
    small_hub: SmallHub, hub: Hub, store: Store
) -> None:
    small_hub.card_errors.append('"license" must be one of these')
    with pytest.raises(HubError, match=r"Invalid metadata.*must be one of these") as caught:
        push(hub, add(store))
    assert "\n" not in str(caught.value)
