"""What the tests of this room share: stores of real files, and mounts that only they see."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from artifacts import stage

from aotbuild.cache.artifact import Entry
from aotbuild.cache.store import Store

Mounted = Callable[[str, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def entry(store: Store) -> Entry:
    with store.staging() as root:
        return store.add(stage(root))


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    """Runs Python code in a mount namespace of its own, after a shell's mount commands.

    `$MOUNT` is an empty folder, `MOUNT` the same in the code, `HERE` the test's own folder.
    """
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("needs a mount namespace: unshare isn't there or isn't allowed")
    point = tmp_path / "mount"
    point.mkdir()

    def run(mounts: str, code: str) -> subprocess.CompletedProcess[str]:
        prelude = (
            "from pathlib import Path; import sys\n"
            f"MOUNT, HERE = Path({str(point)!r}), Path({str(tmp_path)!r})\n"
            f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        )
        script = f'set -e\n{mounts}\nexec "$PYTHON" -c "$CODE"'
        environment = {
            **os.environ,
            "MOUNT": str(point),
            "HERE": str(tmp_path),
            "PYTHON": sys.executable,
            "CODE": prelude + code,
        }
        return subprocess.run(
            [*unshare, "sh", "-c", script], env=environment, capture_output=True, text=True
        )

    return run
