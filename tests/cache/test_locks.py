from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from aotbuild.cache import locks


def test_lock_is_refused_when_somebody_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"

    with locks.hold(path), locks.try_hold(path) as mine:
        assert not mine
    with locks.try_hold(path) as mine:
        assert mine
    assert not path.exists()


def test_lock_is_free_when_its_owner_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    code = (
        "import sys, time; from pathlib import Path; from aotbuild.cache import locks\n"
        "with locks.hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with locks.try_hold(path) as mine:
        assert not mine

    owner.kill()
    owner.communicate(timeout=30)

    assert path.exists()
    with locks.try_hold(path) as mine:
        assert mine


def test_lock_is_held_by_one_at_a_time_when_many_take_and_remove_it(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "a.lock", [0], [0]

    def contend() -> None:
        for _ in range(200):
            with locks.hold(path):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert most == [1]
    assert not path.exists()
