from __future__ import annotations

import subprocess
import sys
import threading
import time
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


def test_lock_is_held_by_one_at_a_time_when_its_file_goes_while_another_waits(
    tmp_path: Path,
) -> None:
    path, spans = tmp_path / "a.lock", list[tuple[float, float]]()

    def take(held_s: float = 0.2) -> None:
        with locks.hold(path):
            began = time.monotonic()
            time.sleep(held_s)
            spans.append((began, time.monotonic()))

    with locks.hold(path):
        waiter = threading.Thread(target=take)
        waiter.start()
        time.sleep(0.1)
    take()
    waiter.join(timeout=60)

    (_, first_end), (second_begin, _) = sorted(spans)
    assert first_end <= second_begin
    assert not path.exists()
