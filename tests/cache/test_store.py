from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from artifacts import LIBRARY, STEM, make_manifest, record, sha256, stage
from conftest import Mounted

from aotbuild.cache.artifact import Broken, Entry
from aotbuild.cache.store import Store
from aotbuild.errors import (
    ArtifactError,
    FormatError,
    IntegrityError,
    ManifestError,
    StoreError,
    UsageError,
)

HERE = Path(__file__).parent


def add(store: Store, **changes: Any) -> Entry:
    with store.staging() as root:
        return store.add(stage(root, **changes))


def read(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return os.pread(file.fileno(), 1 << 20, 0)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A real process that has the tests' artifacts at hand."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r})\n{code}"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Reading


def test_store_is_empty_when_its_folder_does_not_exist(store: Store) -> None:
    assert list(store.entries()) == []
    assert store.get("0" * 64) is None
    assert not store.prune(broken=True).removed
    assert not store.root.exists()


def test_store_is_refused_when_its_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(tmp_path / "file")

    with pytest.raises(StoreError, match="--store DIR"), store.staging():
        pass


def test_artifact_is_found_when_it_was_added(store: Store, entry: Entry) -> None:
    key = entry.manifest.key

    assert list(store.entries()) == [entry]
    assert entry.folder == store.root / entry.manifest.folder
    assert store.get(key) == entry
    assert store.find(key) == store.find(key[:5]) == store.find(f" {key[:20].upper()} ") == entry
    store.verify(entry)
    assert entry.bytes == sum(f.stat().st_size for f in entry.folder.iterdir())


def test_find_gives_advice_when_a_prefix_names_none_or_several(store: Store) -> None:
    keys = [add(store, salt=str(n)).manifest.key for n in range(17)]
    shared = next(k[0] for k in keys if sum(o[0] == k[0] for o in keys) > 1)

    with pytest.raises(UsageError, match=r"begins several keys: .*Give more of it"):
        store.find(shared)
    for missing in ("xyz", "", keys[0][:40] + "x"):
        with pytest.raises(UsageError, match="aotbuild list"):
            store.find(missing)


def test_find_says_what_is_wrong_when_the_artifact_is_broken(store: Store, entry: Entry) -> None:
    (entry.folder / "package.pt2").unlink()

    with pytest.raises(IntegrityError, match=r"holds no package.pt2.*prune --broken"):
        store.find(entry.manifest.key[:8])


def test_member_is_read_when_the_package_is_whole(store: Store, entry: Entry) -> None:
    assert b"AOTI_DEVICE_KEY" in store.read_member(entry, f"{STEM}_metadata.json")
    with pytest.raises(IntegrityError, match="doesn't read"):
        store.read_member(entry, "package/nothing.json")


# Adding


def test_second_adder_gets_the_first_ones_artifact_when_the_key_is_there(
    store: Store, entry: Entry
) -> None:
    before = (entry.folder / "manifest.json").stat()

    assert add(store) == entry
    assert os.path.samestat((entry.folder / "manifest.json").stat(), before)


def test_artifact_is_copied_when_it_comes_from_elsewhere(store: Store, tmp_path: Path) -> None:
    folder = stage(tmp_path / "elsewhere")

    added = store.add(folder)

    assert (folder / "manifest.json").is_file()
    assert list(store.entries()) == [added]
    assert list((store.root / "staging").iterdir()) == []


def test_broken_artifact_is_replaced_when_it_is_built_anew(store: Store, entry: Entry) -> None:
    package = entry.folder / "package.pt2"
    package.write_bytes(package.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError):
        store.verify(entry)

    assert add(store) == entry
    store.verify(entry)


def test_nothing_is_added_when_the_staged_artifact_is_not_whole(store: Store) -> None:
    with store.staging() as root:
        folder = stage(root)
        (folder / "package.pt2").write_bytes(b"x" * (folder / "package.pt2").stat().st_size)
        with pytest.raises(IntegrityError, match="altered"):
            store.add(folder)

    assert list(store.entries()) == []


def test_four_builders_of_one_key_make_one_artifact(store: Store) -> None:
    code = """
from pathlib import Path
from artifacts import make_manifest, stage
from aotbuild.cache.store import Store
store = Store(Path(sys.argv[1]))
key = make_manifest().key
with store.lock(key):
    built = store.get(key) is None
    if built:
        with store.staging() as root:
            store.add(stage(root))
print("built" if built else "found")
"""
    builders = [python(code, str(store.root)) for _ in range(4)]
    answers = sorted(b.communicate(timeout=60)[0].strip() for b in builders)

    assert [b.returncode for b in builders] == [0, 0, 0, 0]
    assert answers == ["built", "found", "found", "found"]
    assert len(list(store.entries())) == 1


def test_four_adders_of_one_key_all_succeed_when_nobody_holds_the_lock(store: Store) -> None:
    code = """
from pathlib import Path
from artifacts import stage
from aotbuild.cache.store import Store
store = Store(Path(sys.argv[1]))
for salt in range(12):
    with store.staging() as root:
        store.verify(store.add(stage(root, salt=str(salt))))
"""
    adders = [python(code, str(store.root)) for _ in range(4)]
    errors = [a.communicate(timeout=60)[1] for a in adders]

    assert [a.returncode for a in adders] == [0, 0, 0, 0], errors
    assert len([e for e in store.entries() if isinstance(e, Entry)]) == 12
    assert list((store.root / "staging").iterdir()) == []
    assert list((store.root / "locks").iterdir()) == []


def test_lock_is_waited_for_when_another_thread_has_it(store: Store) -> None:
    events: list[str] = []

    def other() -> None:
        with store.lock("k"):
            events.append("theirs")

    with store.lock("k"):
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.1)
        events.append("ours")
    thread.join(timeout=10)

    assert events == ["ours", "theirs"]


WRITER = """
from pathlib import Path
from artifacts import stage
from aotbuild.cache.store import Store
store = Store(Path(sys.argv[1]))
for salt in range(100_000):
    with store.lock(str(salt)), store.staging() as root:
        entry = store.add(stage(root, salt=f"{salt % 5}", library=b"x" * 300_000))
        import os
        os.close(store.open_library(entry))
        print(salt, flush=True)
        if salt % 5 == 4:
            store.prune(key=entry.manifest.key)
"""


def test_store_lists_verifies_and_builds_when_writers_were_killed_at_any_time(store: Store) -> None:
    for number in range(20):
        writer = python(WRITER, str(store.root))
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.002 * number)
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=30)

        for found in store.entries():
            assert isinstance(found, Entry), found
            store.verify(found)
    assert isinstance(add(store, salt="after"), Entry)
    assert list((store.root / "staging").iterdir()) == []


def test_staging_folder_stays_when_its_owner_lives(store: Store) -> None:
    with store.staging() as ours:
        (ours / "work").write_text("x")
        with store.staging() as other:
            assert other != ours
        Store(store.root).prune(broken=True)
        assert (ours / "work").read_text() == "x"
    assert not ours.exists()


# Bad files


def alter(entry: Entry, what: str, store: Store) -> None:
    folder = entry.folder
    if what == "a file too many":
        (folder / "notes.txt").write_text("x")
    elif what == "no manifest":
        (folder / "manifest.json").unlink()
    elif what == "an empty manifest":
        (folder / "manifest.json").write_bytes(b"")
    elif what == "a truncated package":
        os.truncate(folder / "package.pt2", 1000)
    elif what == "a linked package":
        shutil.move(folder / "package.pt2", store.root / "p")
        (folder / "package.pt2").symlink_to(store.root / "p")
    elif what == "a linked manifest":
        shutil.move(folder / "manifest.json", store.root / "m")
        (folder / "manifest.json").symlink_to(store.root / "m")
    elif what == "a linked record":
        (folder / "verifications").mkdir()
        (folder / "verifications" / "a.json").symlink_to("/etc/passwd")
    elif what == "linked records":
        (folder / "verifications").symlink_to("/etc")
    elif what == "a linked artifact":
        shutil.move(folder, store.root / "a")
        folder.symlink_to(store.root / "a")
    elif what == "a linked architecture":
        shutil.move(folder.parent, store.root / "a")
        folder.parent.symlink_to(store.root / "a")
    elif what == "a pipe for a package":
        (folder / "package.pt2").unlink()
        os.mkfifo(folder / "package.pt2")
    elif what == "a file for an artifact":
        shutil.rmtree(folder)
        folder.write_text("x")
    elif what == "another place":
        folder.rename(folder.with_name(f"other-{entry.manifest.key[:12]}"))
    elif what == "another architecture":
        folder.parent.rename(folder.parent.with_name("sm_80"))


@pytest.mark.parametrize(
    "what",
    [
        "a file too many",
        "no manifest",
        "an empty manifest",
        "a truncated package",
        "a linked package",
        "a linked manifest",
        "a linked record",
        "linked records",
        "a linked artifact",
        "a linked architecture",
        "a pipe for a package",
        "a file for an artifact",
        "another place",
        "another architecture",
    ],
)
def test_artifact_is_listed_as_broken_and_pruned_when_it_has(
    what: str, store: Store, entry: Entry
) -> None:
    alter(entry, what, store)

    (found,) = store.entries()
    assert isinstance(found, Broken)
    assert str(found.folder) in found.reason
    if "another" not in what and what != "a linked architecture":
        with pytest.raises(ArtifactError):
            store.verify(entry)

    pruned = store.prune(broken=True)
    assert [r.path for r in pruned.removed] == [found.folder]
    assert pruned.removed[0].reason == found.reason
    assert list(store.entries()) == []
    assert Path("/etc/passwd").exists()
    assert isinstance(add(store), Entry)


def test_manifest_of_an_unknown_format_is_refused(store: Store, entry: Entry) -> None:
    path = entry.folder / "manifest.json"
    data = path.read_bytes()
    for version, advice in ((b"2", "newer than format 1"), (b"0", "older than format 1")):
        path.write_bytes(data.replace(b'"format":1', b'"format":' + version))
        (found,) = store.entries()
        assert isinstance(found, Broken)
        assert found.word == "other format"
        assert advice in found.reason
        with pytest.raises(FormatError, match=advice):
            store.find(entry.manifest.key)
    path.write_bytes(data.replace(b'"format":1', b'"format":"1"'))
    (found,) = store.entries()
    assert isinstance(found, Broken)
    assert found.word == "broken"


@pytest.mark.parametrize("what", ["manifest.json", "package.pt2", "library"])
def test_artifact_is_refused_and_no_descriptor_given_when_any_byte_is_flipped(
    what: str, store: Store, entry: Entry
) -> None:
    os.close(store.open_library(entry))
    library = store.root / "libraries" / f"{entry.manifest.library.sha256}.so"
    path = library if what == "library" else entry.folder / what
    path.chmod(0o644)
    data = path.read_bytes()
    step = max(1, len(data) // 350)
    refused = 0
    for position in range(0, len(data), step):
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([data[position] ^ (1 << position % 8)]))
        with pytest.raises((IntegrityError, ManifestError), match=r"prune --broken"):
            store.verify(entry)
        with pytest.raises((IntegrityError, ManifestError), match=r"prune --broken"):
            store.open_library(store.find(entry.manifest.key))
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data[position : position + 1])
        refused += 1
    assert refused >= 350
    store.verify(entry)


# The library


def test_library_is_extracted_once_and_read_through_its_descriptor(
    store: Store, entry: Entry
) -> None:
    assert read(store.open_library(entry)) == LIBRARY
    (path,) = (store.root / "libraries").iterdir()
    before = path.stat()

    fd = store.open_library(entry)

    assert path.name == f"{sha256(LIBRARY)}.so"
    assert os.path.samestat(os.fstat(fd), path.stat())
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert not os.get_inheritable(fd)
    assert read(fd) == LIBRARY


def test_library_of_another_folders_artifact_is_extracted_here(
    store: Store, entry: Entry, tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")

    assert read(other.open_library(entry)) == LIBRARY
    assert (other.root / "libraries").is_dir()
    assert not (store.root / "libraries").exists()


def test_altered_library_is_not_healed_until_it_is_pruned(store: Store, entry: Entry) -> None:
    os.close(store.open_library(entry))
    (path,) = (store.root / "libraries").iterdir()
    path.unlink()
    path.write_bytes(b"other code")

    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"altered.*prune --broken"):
            store.open_library(entry)
    assert path.read_bytes() == b"other code"

    pruned = store.prune(broken=True)
    assert [r.path for r in pruned.removed] == [path]
    assert read(store.open_library(entry)) == LIBRARY


def test_linked_library_is_refused(store: Store, entry: Entry, tmp_path: Path) -> None:
    os.close(store.open_library(entry))
    (path,) = (store.root / "libraries").iterdir()
    shutil.move(path, tmp_path / "lib.so")
    path.symlink_to(tmp_path / "lib.so")

    with pytest.raises(IntegrityError, match="can't be opened"):
        store.open_library(entry)


def test_library_is_refused_when_the_package_is_gone_though_it_was_extracted(
    store: Store, entry: Entry
) -> None:
    os.close(store.open_library(entry))
    (entry.folder / "package.pt2").unlink()

    with pytest.raises(IntegrityError, match="can't be opened"):
        store.open_library(entry)


OPEN = """
import os, fcntl
from aotbuild.cache.store import Store
from aotbuild.errors import StoreError
from artifacts import LIBRARY
store = Store(MOUNT)
(entry,) = store.entries()
store.verify(entry)
fd = store.open_library(entry)
assert os.pread(fd, 1 << 20, 0) == LIBRARY
print(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
print((MOUNT / "libraries").exists())
try:
    os.pwrite(fd, b"x", 0)
except OSError as e:
    print(e.errno)
"""


@pytest.mark.parametrize("options", ["ro", "ro,noexec", "noexec"])
def test_library_is_held_in_sealed_memory_when_the_store_cannot_hold_it(
    options: str, store: Store, entry: Entry, mounted: Mounted
) -> None:
    mounts = f'mount --bind "$HERE/store" "$MOUNT"; mount -o remount,bind,{options} "$MOUNT"'

    done = mounted(mounts, OPEN)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["/memfd", "False", str(errno.EPERM)]


def test_read_only_store_says_so_when_it_is_written_to(
    store: Store, entry: Entry, mounted: Mounted
) -> None:
    code = f"""
from aotbuild.cache.store import Store
from aotbuild.errors import StoreError
store = Store(MOUNT)
(entry,) = store.entries()
def staging():
    with store.staging(): pass
def lock():
    with store.lock("k"): pass
for act in (staging, lock, lambda: store.add(entry.folder), lambda: store.prune(broken=True),
            lambda: store.add_verification(entry, {record(entry.manifest.key)!r})):
    try:
        act()
    except StoreError as e:
        print("can't be written" in str(e) and "AOTBUILD_STORE" in str(e))
print(len(store.prune(key=entry.manifest.key, dry_run=True).removed))
"""
    done = mounted('mount --bind "$HERE/store" "$MOUNT"; mount -o remount,bind,ro "$MOUNT"', code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 5 + ["1"]
    store.verify(entry)


def test_nothing_is_lost_and_advice_given_when_the_disk_is_full(mounted: Mounted) -> None:
    code = """
import shutil
from aotbuild.cache.store import Store
from aotbuild.cache.artifact import Entry
from aotbuild.errors import StoreError
from artifacts import stage
store, kept, full = Store(MOUNT), [], 0
for salt in range(40):
    try:
        with store.staging() as root:
            kept.append(store.add(stage(root, salt=str(salt), library=b"x" * 90_000)))
    except StoreError as e:
        full += "No space left" in str(e) and "aotbuild prune" in str(e)
assert 2 < len(kept) < 40 and full == 40 - len(kept), (len(kept), full)
outside = stage(HERE / "outside", salt="outside", library=b"x" * 200_000)
for act in (lambda: store.add(outside), lambda: [store.open_library(e) for e in kept]):
    try:
        act()
        print("no error")
    except StoreError as e:
        print("No space left" in str(e))
assert sorted(e.folder for e in store.entries()) == sorted(e.folder for e in kept)
for e in kept:
    store.verify(e)
assert list((MOUNT / "staging").iterdir()) == []
"""
    done = mounted('mount -t tmpfs -o size=1m none "$MOUNT"', code)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "True"


# Records


def test_record_is_kept_beside_the_artifact_when_it_is_added_twice(
    store: Store, entry: Entry
) -> None:
    first = store.add_verification(entry, record(entry.manifest.key))
    second = store.add_verification(entry, record(entry.manifest.key))

    assert first == second
    assert store.verifications(entry) == (record(entry.manifest.key),)
    store.verify(entry)
    assert list(store.entries()) == [entry]


def test_manifests_own_record_comes_first_when_others_were_added(store: Store) -> None:
    ours = record(make_manifest().key, made="by the build")
    entry = add(store, verification=(ours,))
    store.add_verification(entry, record(entry.manifest.key))

    assert store.verifications(entry) == (ours, record(entry.manifest.key))


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "0" * 64},
        {"target": None},
        {"target": {"arch": "sm_80"}},
        {"passed": None},
        {"passed": "yes"},
        {"error": float("nan")},
        {"error": object()},
    ],
)
def test_record_is_refused_when_it_is_not_this_artifacts(
    wrong: dict[str, Any], store: Store, entry: Entry
) -> None:
    with pytest.raises(StoreError, match="Not a verification record"):
        store.add_verification(entry, {**record(entry.manifest.key), **wrong})


@pytest.mark.parametrize("how", ["flipped", "renamed", "another artifact's", "not JSON"])
def test_record_is_ignored_with_a_warning_when_it_was_altered(
    how: str, store: Store, entry: Entry, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.add_verification(entry, record(entry.manifest.key))
    if how == "flipped":
        path.write_bytes(path.read_bytes().replace(b"true", b"TRUE"))
    elif how == "renamed":
        path.rename(path.with_name("0123456789abcdef.json"))
    elif how == "not JSON":
        path.write_bytes(b"\xff")
    else:
        other = add(store, salt="other")
        theirs = store.add_verification(other, record(other.manifest.key))
        shutil.copy(theirs, path.parent)
        path.unlink()

    assert store.verifications(entry) == ()
    assert "ignored the verification record" in caplog.text
    store.verify(entry)


# Pruning


def aged(store: Store, salt: str, made_s: float, size: int = 10_000) -> Entry:
    entry = add(store, salt=salt, library=salt.encode() * size)
    os.utime(entry.folder / "manifest.json", (made_s, made_s))
    return entry


def test_prune_removes_by_key_and_takes_the_library_along(store: Store, entry: Entry) -> None:
    other = add(store, salt="other", library=b"other")
    os.close(store.open_library(entry))
    os.close(store.open_library(other))

    pruned = store.prune(key=entry.manifest.key[:9])

    assert [r.key for r in pruned.removed] == [entry.manifest.key, None]
    assert list(store.entries()) == [other]
    assert [p.stem for p in (store.root / "libraries").iterdir()] == [sha256(b"other")]
    assert pruned.removed[0].bytes == entry.bytes


def test_prune_keeps_a_library_when_another_artifact_uses_it(store: Store, entry: Entry) -> None:
    other = add(store, salt="other")
    os.close(store.open_library(entry))

    store.prune(key=entry.manifest.key)

    assert [p.name for p in (store.root / "libraries").iterdir()] == [f"{sha256(LIBRARY)}.so"]
    assert read(store.open_library(other)) == LIBRARY


def test_prune_removes_by_age_when_artifacts_are_older(store: Store) -> None:
    old, new = aged(store, "a", 1_000.0), aged(store, "b", 90_000.0)

    pruned = store.prune(older_than_s=50_000, now_s=100_000.0)

    assert [r.path for r in pruned.removed] == [old.folder]
    assert pruned.removed[0].reason == "1.1 days old"
    assert list(store.entries()) == [new]


def test_prune_removes_the_oldest_first_when_the_store_is_too_large(store: Store) -> None:
    entries = [
        aged(store, name, made_s) for name, made_s in (("a", 300.0), ("b", 100.0), ("c", 200.0))
    ]
    for entry in entries:
        os.close(store.open_library(entry))
    total = sum(e.bytes for e in entries) + 30_000
    stray = store.root / "libraries" / f"{sha256(b'stray')}.so"
    stray.write_bytes(b"stray")

    assert [r.path for r in store.prune(max_bytes=total).removed] == [stray]
    assert store.prune(max_bytes=total).removed == ()
    one_less = store.prune(max_bytes=total - entries[1].bytes - 10_000)
    assert [r.key for r in one_less.removed] == [entries[1].manifest.key, None]
    assert {e.folder for e in store.entries()} == {entries[0].folder, entries[2].folder}
    assert len(list((store.root / "libraries").iterdir())) == 2
    store.prune(max_bytes=0)
    assert list(store.entries()) == []


def test_prune_changes_nothing_when_it_is_a_dry_run(store: Store, entry: Entry) -> None:
    (entry.folder / "notes.txt").write_text("x")

    pruned = store.prune(broken=True, dry_run=True)

    assert [r.path for r in pruned.removed] == [entry.folder]
    assert (entry.folder / "notes.txt").exists()


def test_prune_goes_on_and_reports_when_something_cannot_be_removed(mounted: Mounted) -> None:
    code = """
from aotbuild.cache.store import Store
store = Store(HERE / "store")
pruned = store.prune(older_than_s=0, now_s=1e12)
print(len(pruned.removed), len(pruned.failed), pruned.failed[0][0].path.name)
print(len(list(store.entries())))
"""
    prepare = """
cat > "$HERE/prepare.py" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from artifacts import stage
from aotbuild.cache.store import Store
store = Store(Path(sys.argv[2]) / "store")
for salt in "abc":
    with store.staging() as root:
        entry = store.add(stage(root, salt=salt))
print(entry.folder)
EOF
stuck=$("$PYTHON" "$HERE/prepare.py" "$TESTS" "$HERE")
mount --bind "$stuck" "$stuck"
basename "$stuck"
"""
    done = mounted(f"TESTS={HERE}\n{prepare}", code)

    assert done.returncode == 0, done.stderr
    stuck, counts, left = done.stdout.splitlines()
    assert counts == f"2 1 {stuck}"
    assert left == "1"


def test_prune_sweeps_what_a_killed_builder_left(store: Store, entry: Entry) -> None:
    code = """
from pathlib import Path
from aotbuild.cache.store import Store
with Store(Path(sys.argv[1])).staging() as root:
    (root / "work").write_text("x")
    print(root, flush=True)
    sys.stdin.read()
    import time; time.sleep(60)
"""
    builder = python(code, str(store.root))
    assert builder.stdout is not None
    left = Path(builder.stdout.readline().strip())
    store.prune(broken=True)
    assert (left / "work").exists()

    builder.kill()
    builder.communicate(timeout=30)
    store.prune(broken=True)

    assert not left.exists()
    assert list((store.root / "staging").iterdir()) == []
    assert list(store.entries()) == [entry]


# Packed constants


def test_artifact_with_packed_constants_is_whole_when_it_was_added(store: Store) -> None:
    entry = add(store, packed=b"constants" * 100)

    store.verify(entry)
    assert entry.bytes == sum(f.stat().st_size for f in entry.folder.iterdir())
    assert entry.manifest.key != add(store).manifest.key
    other = Store(store.root.parent / "other")
    assert other.add(entry.folder).manifest == entry.manifest


def test_packed_constants_are_refused_when_a_byte_is_flipped(store: Store) -> None:
    entry = add(store, packed=b"constants" * 100)
    path = entry.folder / "constants.safetensors"
    data = bytearray(path.read_bytes())
    data[450] ^= 1
    path.write_bytes(data)

    with pytest.raises(IntegrityError, match=r"constants\.safetensors was altered"):
        store.verify(entry)
    with pytest.raises(IntegrityError):
        Store(store.root.parent / "other").add(entry.folder)
    assert [r.path for r in store.prune(broken=True).removed] == [entry.folder]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "899 bytes"),
        (lambda path: path.unlink(), "lacks constants.safetensors"),
        (
            lambda path: (
                path.rename(path.parents[5] / "x"),
                path.symlink_to(path.parents[5] / "x"),
            ),
            "link",
        ),
    ],
)
def test_artifact_is_broken_when_its_packed_constants_are_cut_gone_or_a_link(
    store: Store, damage: Any, message: str
) -> None:
    damage(add(store, packed=b"constants" * 100).folder / "constants.safetensors")

    (found,) = [e for e in store.entries() if isinstance(e, Broken)]
    assert message in found.reason


def test_artifact_is_broken_when_it_holds_constants_that_its_manifest_does_not(
    store: Store, entry: Entry
) -> None:
    (entry.folder / "constants.safetensors").write_bytes(b"x")

    (found,) = store.entries()
    assert isinstance(found, Broken)
    assert "holds constants.safetensors, unlike its manifest" in found.reason
