from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from artifacts import CPU, GPU

from aotbuild.target import (
    Accepted,
    Rejected,
    Target,
    is_release,
    judge,
    verdict_of,
    version_tuple,
)

A100 = replace(GPU, glibc="2.36", glibcxx="3.4.30", shared_memory_bytes=166912)
LAPTOP = replace(CPU, arch="x86-64-v4", glibc="2.36", glibcxx="3.4.30")
SMALL_GPU = 101376

# What the artifact has instead, what the machine has instead, and the note.
ACCEPTED: list[tuple[str, dict[str, Any], dict[str, Any], str | None]] = [
    ("the same architecture", {}, {}, None),
    ("a higher minor", {}, {"arch": "sm_86", "shared_memory_bytes": SMALL_GPU}, "built for sm_80"),
    ("two minors up", {}, {"arch": "sm_89", "shared_memory_bytes": SMALL_GPU}, "built for sm_80"),
    ("sm_75 on sm_75", {"arch": "sm_75"}, {"arch": "sm_75"}, None),
    ("9.0a on 9.0", {"arch": "sm_90a"}, {"arch": "sm_90"}, None),
    ("two digits of major", {"arch": "sm_100"}, {"arch": "sm_100"}, None),
    ("12.0", {"arch": "sm_120"}, {"arch": "sm_120"}, None),
    ("no shared memory at all", {"shared_memory_bytes": None}, {"arch": "sm_86"}, "sm_80"),
    ("another patch of torch", {}, {"torch": "2.13.1+cu130"}, None),
    ("torch of PyPI", {}, {"torch": "2.13.0"}, None),
    ("another CUDA minor", {}, {"torch": "2.13.0+cu132", "cuda": "13.2"}, None),
    ("another Triton", {}, {"triton": "3.7.0"}, None),
    ("no libc asked for", {"glibc": None, "glibcxx": None}, {"glibc": None, "glibcxx": None}, None),
]

REJECTED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("a lower minor", {"arch": "sm_86"}, {"arch": "sm_80"}, "newer than the GPU here, sm_80"),
    ("an older major", {}, {"arch": "sm_75"}, "another generation than sm_75"),
    ("a newer major", {}, {"arch": "sm_90"}, "another generation than sm_90"),
    (
        "9.0a on 10.0",
        {"arch": "sm_90a"},
        {"arch": "sm_100"},
        "runs on compute capability 9.0 alone",
    ),
    ("10.0a on 10.3", {"arch": "sm_100a"}, {"arch": "sm_103"}, "capability 10.0 alone"),
    ("10 isn't 1", {"arch": "sm_100"}, {"arch": "sm_120"}, "capability 10.0 alone"),
    ("from 9.0 on none is upward compatible", {"arch": "sm_100"}, {"arch": "sm_103"}, "alone"),
    ("Tegra", {}, {"arch": "sm_87"}, "Tegra shares no code with sm_87"),
    (
        "too little shared memory",
        {"shared_memory_bytes": 163 * 1024},
        {"arch": "sm_86", "shared_memory_bytes": SMALL_GPU},
        "need 166912 bytes of shared memory a block; the GPU here has 101376",
    ),
    ("an unknown arch", {"arch": "gfx942"}, {}, "can't be compared"),
    ("an older torch", {}, {"torch": "2.12.1+cu130"}, "it needs 2.13"),
    ("a newer torch", {}, {"torch": "2.14.0+cu130"}, "it needs 2.13"),
    ("a nightly torch", {}, {"torch": "2.13.0.dev20260401+cu130"}, "isn't a release"),
    ("a vendor's torch", {}, {"torch": "2.13.0a0+ad1b2c3.nv26.05"}, "isn't a release"),
    ("a git torch", {}, {"torch": "2.13.0+git1234567"}, "isn't a release"),
    ("a release candidate", {}, {"torch": "2.13.0rc1"}, "isn't a release"),
    ("built by a nightly", {"torch": "2.13.0.dev20260401+cu130"}, {}, "isn't a release"),
    ("an older CUDA", {}, {"cuda": "12.9"}, "built for CUDA 13.0, and this torch is for 12.9"),
    ("a newer CUDA", {}, {"cuda": "14.0"}, "built for CUDA 13.0, and this torch is for 14.0"),
    ("an older libc", {}, {"glibc": "2.17"}, "It needs GLIBC 2.28, and this system has 2.17"),
    ("libc compared as text", {"glibc": "2.28"}, {"glibc": "2.9"}, "It needs GLIBC 2.28"),
    ("no glibc (musl)", {}, {"glibc": None}, "this system has none"),
    ("an older libstdc++", {}, {"glibcxx": "3.4.21"}, "It needs GLIBCXX 3.4.22"),
    ("another system", {}, {"system": "windows"}, "built for linux, and this is windows"),
    ("another processor", {}, {"processor": "aarch64"}, "this processor is aarch64"),
    ("ROCm", {}, {"device": "rocm", "arch": "rocm", "cuda": None}, "AMD's ROCm"),
    ("XPU", {}, {"device": "xpu", "arch": "xpu", "cuda": None}, "an Intel one (XPU)"),
    ("MPS", {}, {"device": "mps", "arch": "mps", "cuda": None}, "Apple's (MPS)"),
    ("no GPU", {}, {"device": "cpu", "arch": "x86-64-v4"}, "torch finds no GPU on this machine"),
    (
        "a CPU build of torch",
        {},
        {"device": "cpu", "arch": "x86-64-v4", "cuda": None, "torch": "2.13.0+cpu"},
        "this torch, 2.13.0+cpu, is built without CUDA",
    ),
]

CPU_ROWS: list[tuple[str, str, str | None, str | None]] = [
    ("x86-64-v3", "x86-64-v3", None, None),
    ("x86-64-v2", "x86-64-v3", "untuned: built for x86-64-v2", None),
    ("x86-64-v3", "x86-64-v4", "untuned: built for x86-64-v3", None),
    ("x86-64-v3", "x86-64-v2", None, "needs a CPU of level x86-64-v3, and this one is x86-64-v2"),
    ("x86-64-v4", "x86-64-v3", None, "needs a CPU of level x86-64-v4"),
    ("x86-64-v2", "x86-64", None, "for x86-64-v2, and this CPU is x86-64"),
    ("aarch64", "aarch64", None, None),
    ("aarch64", "x86-64-v3", None, "for aarch64, and this CPU is x86-64-v3"),
]


@pytest.mark.parametrize(
    ("artifact", "machine", "note"), [r[1:] for r in ACCEPTED], ids=[r[0] for r in ACCEPTED]
)
def test_judge_accepts_when_the_gpu_fits(
    artifact: dict[str, Any], machine: dict[str, Any], note: str | None
) -> None:
    verdict = judge(replace(GPU, **artifact), replace(A100, **machine))

    assert isinstance(verdict, Accepted)
    assert (verdict.note is None) if note is None else (note in str(verdict.note))


@pytest.mark.parametrize(
    ("artifact", "machine", "reason"), [r[1:] for r in REJECTED], ids=[r[0] for r in REJECTED]
)
def test_judge_rejects_with_its_sentence_when_the_gpu_does_not_fit(
    artifact: dict[str, Any], machine: dict[str, Any], reason: str
) -> None:
    verdict = judge(replace(GPU, **artifact), replace(A100, **machine))

    assert isinstance(verdict, Rejected)
    assert reason in verdict.reason
    assert all(r[0].isupper() or r.startswith("torch") for r in verdict.reasons)
    assert all(r.endswith((".", "one.")) for r in verdict.reasons)


def test_rejections_are_told_apart_when_only_the_kind_of_gpu_differs() -> None:
    kinds = [replace(A100, device=k, arch=k) for k in ("rocm", "xpu", "mps", "cpu")]

    reasons = {judge(GPU, machine).reason for machine in kinds}  # type: ignore[union-attr]

    assert len(reasons) == 4


@pytest.mark.parametrize(("built", "here", "note", "reason"), CPU_ROWS)
def test_judge_orders_cpu_levels_when_both_are_cpus(
    built: str, here: str, note: str | None, reason: str | None
) -> None:
    verdict = judge(replace(CPU, arch=built), replace(LAPTOP, arch=here))

    if reason is None:
        assert verdict == Accepted(note)
    else:
        assert isinstance(verdict, Rejected)
        assert reason in verdict.reason


def test_judge_accepts_a_cpu_artifact_when_torch_is_a_cuda_build() -> None:
    machine = replace(LAPTOP, torch="2.13.0+cu130", cuda="13.0")

    assert isinstance(judge(CPU, machine), Accepted)


def test_judge_rejects_a_cpu_artifact_when_a_gpu_is_wanted() -> None:
    verdict = judge(CPU, A100)

    assert isinstance(verdict, Rejected)
    assert "cuda is what is wanted" in verdict.reason


def test_judge_gives_every_reason_when_several_things_differ() -> None:
    machine = replace(A100, arch="sm_75", torch="2.12.0+cu126", cuda="12.6", glibc="2.17")

    verdict = judge(GPU, machine)

    assert isinstance(verdict, Rejected)
    assert len(verdict.reasons) == 4
    assert verdict.reasons[0] == verdict.reason


NIGHTLY = "2.13.0.dev20260401+cu130"


def test_judge_accepts_a_nightly_when_a_record_names_the_machines_version() -> None:
    machine = replace(A100, torch=NIGHTLY)

    assert judge(GPU, machine, verified_torch={NIGHTLY}) == Accepted()
    assert isinstance(judge(GPU, machine, verified_torch={"2.13.0+cu130"}), Rejected)


def test_judge_rejects_a_nightly_of_another_minor_when_a_record_names_it() -> None:
    machine = replace(A100, torch="2.14.0.dev20260401+cu130")

    assert isinstance(judge(GPU, machine, verified_torch={machine.torch}), Rejected)


@pytest.mark.parametrize(
    ("torch", "release"),
    [
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.13.0+cu130", True),
        ("2.13.0+cpu.cxx11.abi", True),
        ("2.13.0+rocm7.1", True),
        ("2.13.0.post2", True),
        ("2.13.0.dev20260401", False),
        ("2.13.0a0+git123", False),
        ("2.13.0+computecanada", False),
        ("2.13.0rc3+cpu", False),
        ("2.13", False),
    ],
)
def test_is_release_says_whether_a_torch_was_published(torch: str, release: bool) -> None:
    assert is_release(torch) is release


def test_target_is_the_same_when_written_and_read() -> None:
    assert Target.from_json(GPU.to_json()) == GPU
    with pytest.raises(ValueError, match="unknown field 'gpu'"):
        Target.from_json({**GPU.to_json(), "gpu": "a100"})


def test_version_tuple_reads_the_leading_numbers() -> None:
    assert version_tuple("2.13.0a0+git1") == (2, 13, 0)
    assert version_tuple("none") == ()


def test_verdict_is_accepted_when_nothing_speaks_against_it() -> None:
    assert verdict_of([], "untuned") == Accepted("untuned")
    assert verdict_of(["a", "b"]) == Rejected("a", ("b",))
