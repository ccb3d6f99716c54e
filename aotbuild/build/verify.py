"""Does a compiled component compute what the module does? Asked through the real loader.

    python -m aotbuild.build.verify STORE KEY SEED      prints the record as JSON

A compiled component passes when, against the same module run eagerly in a higher precision, its
relative L2 error is at most `EAGER_FACTOR` times the error that eager itself makes in the
artifact's precision, or `FLOOR` where that is larger. Of an int8 artifact the error may be
`INT8_FACTOR` times that of the module as torchao quantizes it. Leaves storing the record to its
caller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aotbuild.build.closeness import check_finite, relative_l2
from aotbuild.build.examples import Sizes, cases, example_call
from aotbuild.build.trial import REFERENCE, call_dtype, cast, stock_module
from aotbuild.cache.manifest import Manifest
from aotbuild.errors import AotbuildError, BuildError, VerificationError
from aotbuild.loaders.rules import INT8_ROWS
from aotbuild.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

EAGER_FACTOR = 1.5
"""Another order of summation may cost what eager's own rounding costs, and half of it again."""

INT8_FACTOR = 1.1
"""int8's own error is far above rounding's, and compiled code only flips some of its roundings."""

FLOOR = 1e-5
"""Relative L2 below which float32 answers count as the same."""


def verify_in_process(store: Path, key: str, *, seed: int = 0) -> dict[str, Any]:
    """`verify` in a fresh process, whose memory is given back when it ends.

    Raises:
        BuildError: the artifact couldn't be loaded, or the process died.
    """
    command = [sys.executable, "-m", "aotbuild.build.verify", str(store), key, str(seed)]
    with tempfile.TemporaryDirectory(prefix="aotbuild-verify-") as caches:
        own = {"TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton"}
        theirs = {n: v for n, v in os.environ.items() if not n.startswith("DIFFUSERS_ATTN")}
        environment = {**theirs, **own}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise BuildError(
            f"The verification of {key[:12]} ended with exit code {done.returncode}: "
            f"{done.stderr.strip()[-2000:]}"
        ) from None
    if "error" in answer:
        raise BuildError(f"{key[:12]} could not be verified: {answer['error']}")
    record: dict[str, Any] = answer["record"]
    return record


def verify(store: Path, key: str, *, seed: int = 0) -> dict[str, Any]:
    """Compare the artifact with eager for every signature it claims, with random weights.

    A dynamic artifact is checked at its corners and once inside.

    Returns:
        The verification record: whether it `passed`, on which `target`, the seed, and for each
        case its sizes, eager's and the artifact's relative L2 error against the reference, and the
        bound. For int8, `eager_error` is that of the eagerly quantized module, and `int8_error`
        how far the artifact is from the unquantized module in its own precision.
    """
    import torch

    from aotbuild import probe
    from aotbuild.cache.store import Store

    manifest = Store(store).find(key).manifest
    caches: dict[str, int] = {}
    dtype = call_dtype(manifest)
    sizes = list(cases(manifest.signature))
    with torch.no_grad():
        answers = _answers(manifest, store, dtype, sizes, seed, caches)
        _, module = stock_module(manifest, seed)
        module = cast(manifest, module, REFERENCE[dtype])
        results = [_case(manifest, module, a, seed) for a in answers]
    return {
        "passed": all(r["artifact_error"] <= r["bound"] for r in results) and all_hit(caches),
        "target": probe.this_machine(manifest.target.device).to_json(),
        "key": manifest.key,
        "library": (manifest.library or manifest.package).sha256,
        "seed": seed,
        "reference": REFERENCE[dtype],
        "cases": results,
        **({"caches": caches} if caches else {}),
    }


def all_hit(caches: Mapping[str, int]) -> bool:
    """Whether a bundle gave every graph that a start looked for; so does what isn't a bundle.

    What AOTAutograd's cache lacks (of a range one entry, looked up under other guards) is traced
    again, and its graphs are then found in Inductor's.
    """
    missed = caches and (caches["graph_misses"] or caches["graph_bypasses"])
    return not caches or (not missed and caches["graph_hits"] > 0)


def check_record(record: dict[str, Any], component: str) -> None:
    """Refuse an artifact whose record says that it is too far from eager.

    Raises:
        VerificationError: how far, and in which case.
    """
    if not all_hit(record.get("caches", {})):
        raise VerificationError(
            f"{component} {record['key'][:12]}: a fresh process doesn't find what the bundle put "
            f"into its caches ({record['caches']}). Inductor's settings in the environment "
            "(TORCHINDUCTOR_...) count in its keys; nothing was stored."
        )
    for case in record["cases"]:
        if not case["artifact_error"] <= case["bound"]:
            raise VerificationError(
                f"{component} {record['key'][:12]} is wrong at {case['sizes'] or 'its one shape'}: "
                f"relative L2 error {case['artifact_error']:.2e} against {record['reference']}, "
                f"where eager makes {case['eager_error']:.2e} and at most {case['bound']:.2e} is "
                "allowed. It wasn't stored; please report it with the command that built it."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """The output tensors of one case, all with the same weights in the artifact's precision.

    `quantized` are those of the module as torchao quantizes it, where the artifact is int8.
    """

    sizes: Sizes
    artifact: list[torch.Tensor]
    eager: list[torch.Tensor]
    quantized: list[torch.Tensor] | None


def _answers(
    manifest: Manifest,
    store: Path,
    dtype: str,
    sizes: list[Sizes],
    seed: int,
    caches: dict[str, int],
) -> list[_Answers]:
    """The answers to each case; loaded as the pipeline is loaded, and cast as it casts.

    `caches` gets what a bundle's compiling found in them.
    """
    from aotbuild.build.prepare import prepare
    from aotbuild.loaders.load import load_on_trial

    whole, module = stock_module(manifest, seed)
    name = manifest.component.partition(".")[0]
    loaded = load_on_trial(SimpleNamespace(**{name: module}), store, manifest.key)
    cast(manifest, module, dtype)
    ours = [_run(manifest, module, size, seed) for size in sizes]
    unit = loaded.to_json()["units"][manifest.component]
    caches |= unit["artifacts"][0]["jit_cache"] or {}
    loaded.restore()
    eager = [_run(manifest, module, size, seed) for size in sizes]
    quantized: list[list[torch.Tensor] | None] = [None for _ in sizes]
    if is_int8(manifest):
        prepare(whole, Recipe.from_json(manifest.recipe).components[name])
        quantized = [_run(manifest, module, size, seed) for size in sizes]
    return [
        _Answers(sizes=s, artifact=o, eager=e, quantized=q)
        for s, o, e, q in zip(sizes, ours, eager, quantized, strict=True)
    ]


def is_int8(manifest: Manifest) -> bool:
    """Whether any of its constants is quantized."""
    return any(c.rule == INT8_ROWS for c in manifest.constants)


def _run(
    manifest: Manifest, module: nn.Module, sizes: Sizes, seed: int, dtype: str | None = None
) -> list[torch.Tensor]:
    """The tensors of one answer, on the CPU; with `dtype` floating inputs are cast to it first."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    call = example_call(
        manifest.signature,
        manifest.checks.get("example_values", {}),
        sizes,
        device=manifest.target.device,
        seed=seed,
    )
    if dtype is not None:
        target = getattr(torch, dtype)
        call = tree_map(
            lambda t: t.to(target) if isinstance(t, torch.Tensor) and t.is_floating_point() else t,
            call,
        )
    answer = getattr(module, manifest.method)(**call)
    return [t.detach().cpu().clone() for t in tree_leaves(answer) if isinstance(t, torch.Tensor)]


def _case(manifest: Manifest, module: nn.Module, answers: _Answers, seed: int) -> dict[str, Any]:
    """The errors of one case; `module` is in the reference precision."""
    reference = _run(manifest, module, answers.sizes, seed, REFERENCE[call_dtype(manifest)])
    eager_tensors = answers.quantized or answers.eager
    where = f"{manifest.component} {manifest.key[:12]} at {answers.sizes or 'its one shape'}"
    check_finite(where, answers.artifact, (*eager_tensors, *reference))
    int8 = answers.quantized is not None
    eager = relative_l2(eager_tensors, reference)
    return {
        "sizes": answers.sizes,
        "eager_error": eager,
        "artifact_error": relative_l2(answers.artifact, reference),
        "bound": max((INT8_FACTOR if int8 else EAGER_FACTOR) * eager, FLOOR),
        **({"int8_error": relative_l2(answers.artifact, answers.eager)} if int8 else {}),
    }


def main(arguments: list[str]) -> int:
    """Verify and print one JSON line: {"record": ...} or {"error": ...}."""
    store, key, seed = arguments
    try:
        answer: dict[str, Any] = {"record": verify(Path(store), key, seed=int(seed))}
    except AotbuildError as e:
        answer = {"error": str(e)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if "record" in answer else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
