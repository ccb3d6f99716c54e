"""The whole way: pushed from one store, loaded by a fresh process into an empty one, over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from artifacts import stage
from hub_fixtures import settings, small_hub
from hub_state import SmallHub
from tiny import Tiny, image, run_aotbuild

import aotbuild
from aotbuild.cache.collection import INDEX

__all__ = ["small_hub"]

NAME = "org/tiny-aot"

SERVICE = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
from pathlib import Path
from tiny import RECIPE, fallbacks, hits, image
import aotbuild
from aotbuild.bench.pipeline import random_pipeline
pipeline = random_pipeline(RECIPE)
loaded = aotbuild.load(pipeline, {source}, fallback="error")
np.save({out!r}, image(pipeline))
assert hits(loaded) > 0 and not fallbacks(loaded), loaded.report()
"""


def serve(environment: dict[str, str], source: str, out: Path) -> Any:
    """The picture of a service in a process of its own."""
    code = SERVICE.format(here=str(Path(__file__).parent), source=source, out=str(out))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.load(out)


def test_picture_is_the_same_when_artifacts_come_from_a_collection(
    small_hub: SmallHub, tiny: Tiny, pipeline: Any, tmp_path: Path
) -> None:
    loaded = aotbuild.load(pipeline, tiny.store, store=tiny.store)
    expected = image(pipeline)
    loaded.restore()
    environment = {**os.environ, **settings(small_hub, tmp_path)}
    other = tmp_path / "other"
    stage(other, component="unet", recipe={"name": "other"})  # of another model
    for command in (
        ("push", NAME, "--all", "--store", str(other)),
        ("push", NAME, "--recipe", "tiny", "--store", str(tiny.store)),
        ("lock", NAME, "--out", str(tmp_path / "aotbuild.lock")),
        ("prefetch", str(tmp_path / "aotbuild.lock"), "--store", str(tmp_path / "prefetched")),
    ):
        done = run_aotbuild(*command, env=environment)
        assert done.returncode == 0, done.stderr
    commit = small_hub.repos[NAME].head

    small_hub.log.clear()
    service = settings(small_hub, tmp_path / "service")  # a client that has cached nothing yet
    ours = {**environment, **service, "AOTBUILD_STORE": str(tmp_path / "empty")}
    picture = serve(ours, f"{NAME!r}, revision={commit!r}", tmp_path / "hub.npy")
    assert np.array_equal(picture, expected)
    index, *files = small_hub.fetched()
    folders = [Path(a["path"]).relative_to(tiny.store) for a in tiny.document["artifacts"]]
    wanted = [
        f"{f.as_posix()}/{name}" for f in folders for name in ("manifest.json", "package.pt2")
    ]
    assert index == INDEX
    assert sorted(files) == sorted(wanted)

    small_hub.log.clear()
    offline = {
        **environment, "AOTBUILD_STORE": str(tmp_path / "prefetched"), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    lock = f"Path({str(tmp_path / 'aotbuild.lock')!r})"
    assert np.array_equal(serve(offline, lock, tmp_path / "lock.npy"), expected)
    assert small_hub.log == []
