"""JIT-cache bundles: not taken unasked, hit where they fit, and said why where they don't."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor
from hub_fixtures import small_hub
from hub_state import SmallHub
from torch import nn

import aotbuild
from aotbuild.cache.artifact import Entry
from aotbuild.cache.bundle import BUNDLE
from aotbuild.cache.card import Facts
from aotbuild.cache.collection import INDEX
from aotbuild.cache.hub import Hub
from aotbuild.cache.publish import publish
from aotbuild.errors import NoArtifactError

from . import jitting, nets
from .conftest import Kit

__all__ = ["small_hub"]

NAME = "org/nets"
KERNEL = ".main.so"  # what Inductor compiles to learn what the CPU can do is named otherwise

# What torch's own compiler warns of, once a process.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")

SERVICE = """
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
import torch
import aotbuild
spec = importlib.util.spec_from_file_location({name!r}, {file!r})
nets = sys.modules[{name!r}] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nets)
torch.set_num_threads(1)
net = nets.net()
call = nets.call(return_dict=False)
with torch.no_grad():
    eager = net(**call)[0]
    loaded = aotbuild.load(
        SimpleNamespace(net=net), Path({store!r}), fallback="error", allow_jit_cache=True
    )
    torch.testing.assert_close(net(**call)[0], eager)
print(loaded.report())
"""


@pytest.fixture(scope="session")
def archive(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jitting.archive(compiled, tmp_path_factory.mktemp("jit"))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, which is this process's own."""
    with jitting.caches(tmp_path / "caches"):
        yield tmp_path / "caches"


def run(module: nn.Module, **changes: Any) -> Any:
    with torch.no_grad():
        return module(**nets.call(return_dict=False, **changes))[0]


def counts(loaded: aotbuild.Loaded) -> dict[str, int]:
    (artifact,) = loaded.to_json()["units"]["net"]["artifacts"]
    return dict(artifact["jit_cache"])


def rejected(kit: Kit, module: nn.Module, **options: Any) -> str:
    """Why the one bundle doesn't serve `module`."""
    options = {"allow_jit_cache": True, "fallback": "error", **options}
    with pytest.raises(NoArtifactError) as raised:
        kit.load(net=module, **options)
    return str(raised.value)


def test_bundle_is_not_taken_when_nobody_allows_it(kit: Kit, archive: Path, fresh: Path) -> None:
    jitting.write_bundle(kit.store, archive)
    module = nets.net()
    loaded = kit.load(net=module)
    assert "holds pickles" in loaded.report()
    assert "allow_jit_cache=True" in loaded.report()
    assert "forward" not in vars(module)
    assert not fresh.exists() or not list(fresh.rglob("*"))


def test_first_call_hits_both_caches_when_the_module_is_the_bundles(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive)
    module = nets.net()
    expected = run(module)
    loaded = kit.load(net=module, allow_jit_cache=True)
    assert "nothing was looked up in Inductor's caches yet" in loaded.report()

    torch.testing.assert_close(run(module), expected)
    assert loaded.metrics()["net"]["fallbacks"] == {}
    found = counts(loaded)
    assert (found["graph_hits"], found["graph_misses"]) == (1, 0)
    assert (found["autograd_hits"], found["autograd_misses"]) == (1, 0)
    assert "jit-cache, " in loaded.report()
    assert "graphs: 1 hits, 0 misses; AOTAutograd's: 1 hits, 0 misses" in loaded.report()

    run(module)
    assert counts(loaded) == found
    loaded.restore()
    assert "forward" not in vars(module)
    torch.testing.assert_close(run(module), expected, rtol=0, atol=0)


def test_fresh_process_compiles_nothing_when_it_has_the_bundle(
    kit: Kit, archive: Path, tmp_path: Path
) -> None:
    jitting.write_bundle(kit.store, archive)
    script = SERVICE.format(name=nets.__name__, file=nets.__file__, store=str(kit.store.root))
    folder = tmp_path / "caches"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "graphs: 1 hits, 0 misses; AOTAutograd's: 1 hits, 0 misses" in done.stdout
    with zipfile.ZipFile(archive) as found:
        shipped = {n.partition("/")[2] for n in found.namelist() if n.endswith(KERNEL)}
    kernels = {p.relative_to(folder).as_posix() for p in folder.rglob(f"*{KERNEL}")}
    assert shipped
    assert kernels == shipped


def test_call_runs_eagerly_when_the_bundle_does_not_cover_it(
    kit: Kit, archive: Path, fresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jitting.write_bundle(kit.store, archive)
    module = nets.net()
    expected = run(module, size=24)
    loaded = kit.load(net=module, allow_jit_cache=True)
    torch.testing.assert_close(run(module, size=24), expected, rtol=0, atol=0)
    assert loaded.metrics()["net"]["fallbacks"] == {"call": 1}
    assert not any(counts(loaded).values())


def test_weights_changed_later_are_what_it_computes_with(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive)
    module = nets.net()
    loaded = kit.load(net=module, allow_jit_cache=True)
    before = run(module)
    with torch.no_grad():
        module.conv_out.weight.mul_(2)
        module.conv_in.weight = nn.Parameter(module.conv_in.weight * 3)
    after = run(module)
    assert not torch.allclose(before, after)
    loaded.restore()
    torch.testing.assert_close(after, run(module))


def test_artifact_compiled_ahead_of_time_serves_first_when_there_is_one(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive)
    own = kit.net()
    module = nets.net()
    loaded = kit.load(net=module, allow_jit_cache=True)
    run(module)
    hits = loaded.metrics()["net"]["hits"]
    assert hits[own.key[:12]] == 1
    assert sorted(hits.values()) == [0, 1]


def test_bundle_is_fetched_from_a_collection_when_it_is_allowed_and_not_before(
    small_hub: SmallHub, kit: Kit, archive: Path, fresh: Path, tmp_path: Path
) -> None:
    manifest = jitting.write_bundle(kit.store, archive)
    entries = [e for e in kit.store.entries() if isinstance(e, Entry)]
    commit = publish(Hub(pause_s=0.01), NAME, entries, Facts()).commit
    pipeline = SimpleNamespace(net=nets.net())
    for allow in (False, True):
        small_hub.log.clear()
        loaded = aotbuild.load(
            pipeline, NAME, revision=commit, store=tmp_path / "here", allow_jit_cache=allow
        )
        fetched = [f for f in small_hub.fetched() if f != INDEX]
        assert fetched == [f"{manifest.folder}/{n}" for n in (BUNDLE, "manifest.json") if allow]
        assert ("holds pickles" in loaded.report()) is not allow
    run(pipeline.net)
    assert counts(loaded)["graph_hits"] == 1, loaded.report()
    loaded.restore()


def test_bundle_is_turned_down_when_the_cpu_lacks_an_instruction(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(
        kit.store,
        archive,
        change=lambda f: f["checks"].update(cpu_flags=f["checks"]["cpu_flags"] + " amx_fp64"),
    )
    assert "this one lacks amx_fp64" in rejected(kit, nets.net())
    assert not list(fresh.rglob("*.so"))


def test_bundle_is_turned_down_when_it_was_compiled_under_other_paths(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive, change=lambda f: f["checks"].update(command="0" * 64))
    assert "lie elsewhere" in rejected(kit, nets.net())


def test_bundle_is_turned_down_when_there_is_no_compiler(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive)
    with inductor.patch({"cpp.cxx": (None, "no-such-compiler")}):
        assert "no C++ compiler here" in rejected(kit, nets.net())


def test_bundle_is_turned_down_when_parameters_do_not_require_grad(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive)
    said = rejected(kit, nets.net().requires_grad_(False))
    assert "net.requires_grad_(True)" in said


def test_bundle_is_turned_down_with_what_to_call_when_it_was_fused(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(
        kit.store, archive, change=lambda f: f.update(state={**f["state"], "fused": ["attn"]})
    )
    assert "fuse_qkv_projections() before aotbuild.load" in rejected(kit, nets.net())


def test_bundle_is_turned_down_when_another_torch_made_it(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(
        kit.store,
        archive,
        change=lambda f: f.update(target=replace(f["target"], torch="2.10.0+cpu")),
    )
    assert "It is built with torch 2.10.0+cpu" in rejected(kit, nets.net())


def test_bundle_is_turned_down_when_the_caches_can_not_be_written(
    kit: Kit,
    archive: Path,
    tmp_path: Path,
) -> None:
    jitting.write_bundle(kit.store, archive)
    with jitting.caches(tmp_path / "caches"):
        for name in ("fxgraph", "aotautograd"):
            (tmp_path / "caches").mkdir(exist_ok=True)
            (tmp_path / "caches" / name).write_bytes(b"a file")
        assert "TORCHINDUCTOR_CACHE_DIR" in rejected(kit, nets.net())


def test_calls_run_eagerly_when_compiling_fails(
    kit: Kit, archive: Path, fresh: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jitting.write_bundle(kit.store, archive)
    module = nets.net()
    expected = run(module)
    loaded = kit.load(net=module, allow_jit_cache=True)
    shutil.rmtree(fresh)
    with inductor.patch({"cpp.cxx": (None, "no-such-compiler")}):
        torch.testing.assert_close(run(module), expected, rtol=0, atol=0)
    assert loaded.metrics()["net"]["fallbacks"] == {"disabled": 1}
    assert "disabled: torch.compile failed" in loaded.report()
    torch.testing.assert_close(run(module), expected, rtol=0, atol=0)


def test_first_answer_is_compared_when_nothing_vouches_for_the_bundle(
    kit: Kit, archive: Path, fresh: Path
) -> None:
    jitting.write_bundle(kit.store, archive, verified=False)
    module = nets.net()
    loaded = kit.load(net=module, allow_jit_cache=True)
    run(module)
    assert "first call agreed with eager" in loaded.report()
