from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from aotbuild import probe
from aotbuild.target import CPU_LEVELS, Accepted, judge

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V4, "x86-64-v4"),
        (V3, "x86-64-v3"),
        (V2, "x86-64-v2"),
        ("fpu sse2", "x86-64"),
        (V4.replace("avx512vl", ""), "x86-64-v3"),
        (V4.replace("movbe", ""), "x86-64-v2"),
        (V4.replace("popcnt", ""), "x86-64"),
    ],
)
def test_level_is_the_highest_that_the_flags_cover(flags: str, level: str) -> None:
    assert probe.level_of(frozenset(flags.split())) == level


def test_highest_version_is_found_when_a_library_holds_several() -> None:
    data = b"\0GLIBCXX_3.4\0GLIBCXX_3.4.9\0GLIBCXX_3.4.30\0GLIBCXX_3.4.21\0GLIBCXX_DEBUG\0"

    assert probe.highest_version(data, "GLIBCXX") == "3.4.30"
    assert probe.highest_version(b"nothing", "GLIBCXX") is None


def test_this_machine_is_one_that_its_own_artifacts_run_on() -> None:
    machine = probe.this_machine("cpu")

    assert machine.device == "cpu"
    assert (machine.system, machine.processor) == (platform.system().lower(), platform.machine())
    assert machine.arch in (*CPU_LEVELS, "x86-64") or platform.machine() != "x86_64"
    assert machine.glibcxx is not None
    assert machine.glibcxx.startswith("3.4.")
    assert isinstance(judge(machine, machine), Accepted)


def test_this_machine_is_its_cpu_when_a_gpu_is_asked_for_and_there_is_none() -> None:
    import torch

    machine = probe.this_machine("cuda")

    assert machine.device == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.gpu
def test_this_machine_is_its_gpu_when_there_is_one() -> None:
    import torch

    machine = probe.this_machine()

    assert machine.arch == "sm_{}{}".format(*torch.cuda.get_device_capability(0))
    assert machine.shared_memory_bytes is not None
    assert machine.shared_memory_bytes >= 48 * 1024
    assert probe.this_machine("cpu").arch.startswith("x86-64")


def test_versions_have_none_when_a_package_is_absent() -> None:
    found = probe.versions()

    assert tuple(found) == probe.PACKAGES
    assert found["torch"] is not None


def test_default_store_is_the_variables_when_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTBUILD_STORE", "~/artifacts")
    assert probe.default_store() == Path.home() / "artifacts"

    monkeypatch.delenv("AOTBUILD_STORE")
    assert probe.default_store() == Path.home() / ".cache" / "aotbuild"


def test_importing_the_cache_brings_no_torch() -> None:
    code = """
import importlib, pkgutil, sys
import aotbuild.cache, aotbuild.probe, aotbuild.target
for module in pkgutil.iter_modules(aotbuild.cache.__path__):
    importlib.import_module(f"aotbuild.cache.{module.name}")
print(sorted({"torch", "numpy", "diffusers", "click"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )

    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
