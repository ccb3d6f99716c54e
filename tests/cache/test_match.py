from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from artifacts import CPU, GPU, dynamic_signature, identity, make_manifest, record

from aotbuild.cache import match
from aotbuild.cache.match import ModuleFacts
from aotbuild.target import Accepted, Rejected

FACTS = ModuleFacts(
    identity=identity(),
    state={"training": False, "switches": {"use_tiling": False}},
    precision="float32",
    device="cpu",
)
LAPTOP = replace(CPU, arch="x86-64-v4", glibc="2.36", glibcxx="3.4.30")

REJECTED: list[tuple[dict[str, Any], str]] = [
    (
        {"identity": identity(class_name="AutoencoderKL")},
        "It is a UNet2DConditionModel, and the module is a AutoencoderKL.",
    ),
    (
        {"identity": identity(config={"act_fn": "gelu"})},
        'config isn\'t the one it was built from: act_fn is "gelu" (built with "silu")',
    ),
    (
        {"identity": identity(config={"added": None})},
        'added is null (built with "(absent)")',
    ),
    (
        {"identity": identity(config={f"k{i}": i for i in range(9)})},
        "and 6 more",
    ),
    (
        {"identity": identity(source_sha256="6" * 64), "versions": {"diffusers": "0.43.0"}},
        "isn't what it was built from (diffusers 0.42.1, here 0.43.0).",
    ),
    (
        {"identity": identity(source_sha256="6" * 64), "versions": {"diffusers": "0.42.1"}},
        "The source of UNet2DConditionModel isn't what it was built from.",
    ),
    (
        {"state": {"training": True, "switches": {"use_tiling": False}}},
        "training is true (built with false)",
    ),
    (
        {"state": {"training": False, "switches": {"use_tiling": 0}}},
        "switches.use_tiling is 0 (built with false)",
    ),
    ({"state": {"switches": {"use_tiling": False}}}, 'training is "(absent)"'),
    ({"precision": "float16"}, "built for float32, and the pipeline is in float16"),
    ({"device": "cuda"}, "built for cpu, and the module is on cuda"),
    ({"device": "mps"}, "built for cpu, and the module is on mps"),
    ({"device": "meta"}, "built for cpu, and the module is on meta"),
]


def test_judge_accepts_when_module_and_machine_are_the_manifests() -> None:
    assert match.judge(make_manifest(), FACTS, CPU) == Accepted()
    assert match.judge(make_manifest(), FACTS, LAPTOP) == Accepted("untuned: built for x86-64-v3")


def test_judge_accepts_another_diffusers_when_the_source_is_the_same() -> None:
    facts = replace(FACTS, versions={"diffusers": "0.43.0"})

    assert match.judge(make_manifest(), facts, CPU) == Accepted()


@pytest.mark.parametrize(("changes", "reason"), REJECTED)
def test_judge_rejects_with_its_sentence_when_the_module_differs(
    changes: dict[str, Any], reason: str
) -> None:
    verdict = match.judge(make_manifest(), replace(FACTS, **changes), CPU)

    assert isinstance(verdict, Rejected)
    assert reason in verdict.reason


def test_judge_gives_the_machines_reasons_too_when_both_differ() -> None:
    machine = replace(CPU, torch="2.12.0+cpu", arch="x86-64-v2")

    verdict = match.judge(make_manifest(), replace(FACTS, precision="float16"), machine)

    assert isinstance(verdict, Rejected)
    assert len(verdict.reasons) == 3


def test_judge_reads_a_state_of_tuples_as_the_json_it_would_be() -> None:
    manifest = make_manifest(state={"fused": ["q", "k"]})

    assert match.judge(manifest, replace(FACTS, state={"fused": ("q", "k")}), CPU) == Accepted()


def test_judge_lets_a_nightly_through_when_a_record_or_a_trial_says_so() -> None:
    manifest, nightly = make_manifest(), replace(CPU, torch="2.13.0.dev20260401+cpu")
    here, failed = record(manifest.key, nightly), record(manifest.key, nightly, passed=False)

    assert isinstance(match.judge(manifest, FACTS, nightly), Rejected)
    assert isinstance(match.judge(manifest, FACTS, nightly, records=[failed]), Rejected)
    assert match.judge(manifest, FACTS, nightly, records=[here]) == Accepted()
    assert match.judge(manifest, FACTS, nightly, trial=True) == Accepted()
    assert match.judge(replace(manifest, verification=(here,)), FACTS, nightly) == Accepted()


def test_rank_puts_exact_before_dynamic_before_lower_before_unverified() -> None:
    exact, dynamic = (
        make_manifest(target=GPU),
        make_manifest(signature=dynamic_signature(), target=GPU),
    )
    newer = make_manifest(target=replace(GPU, arch="sm_86"))
    machine = replace(GPU, arch="sm_89")
    checked = replace(exact, verification=(record(exact.key, machine),))
    elsewhere = replace(exact, verification=(record(exact.key, GPU),))
    newer_dynamic = replace(dynamic, target=newer.target)

    order = sorted(
        [newer_dynamic, dynamic, exact, elsewhere, checked, newer],
        key=lambda m: match.rank(m, machine),
    )

    assert order[:2] == [newer, checked]
    assert order[2:4] == [exact, elsewhere]
    assert order[4:] == [newer_dynamic, dynamic]


def test_rank_does_not_depend_on_the_order_of_listing_when_all_else_is_equal() -> None:
    ours, theirs = make_manifest(salt="a"), make_manifest(salt="b")

    assert match.rank(ours, CPU)[:-1] == match.rank(theirs, CPU)[:-1]
    assert match.rank(ours, CPU) != match.rank(theirs, CPU)


def test_verified_is_of_this_architecture_alone() -> None:
    manifest = make_manifest()

    assert match.verified(manifest, CPU, records=[record(manifest.key)])
    assert not match.verified(manifest, LAPTOP, records=[record(manifest.key)])
    assert not match.verified(manifest, CPU, records=[record(manifest.key, passed=False)])
    assert not match.verified(manifest, CPU)
