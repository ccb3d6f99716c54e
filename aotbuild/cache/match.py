"""Whether an artifact serves a given module on a given machine, and which of several is best.

Reads no file and asks no machine (`store` and `probe` do).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aotbuild.cache.backend import AOT, INDUCTOR_CACHE, LEFT_OUT
from aotbuild.cache.item import Item
from aotbuild.cache.key import json_differences
from aotbuild.cache.manifest import Manifest, ModuleIdentity
from aotbuild.cache.requirements import missing, required
from aotbuild.canonical import canonical_bytes
from aotbuild.target import Rejected, Target, Verdict, verdict_of
from aotbuild.target import judge as judge_target

_SHOWN = 3
"""Differences that a reason spells out; the rest are counted."""


Described: TypeAlias = Manifest | Item
"""What is judged: a manifest, or what a collection's index repeats of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """What a loader knows of the module that it wants an artifact for.

    Attributes:
        identity: its class, config and source.
        state: what an export of it would freeze, see `loaders.state`.
        precision: the dtype its pipeline was loaded in, "float16".
        device: the kind of device its parameters are on: it decides which artifacts are wanted.
        versions: installed packages by name: to word a refusal, and of all that are `required`.
    """

    identity: ModuleIdentity
    state: Mapping[str, Any]
    precision: str
    device: str
    versions: Mapping[str, str | None] = field(default_factory=dict)


def judge(
    manifest: Described,
    facts: ModuleFacts,
    machine: Target,
    *,
    records: Iterable[Mapping[str, Any]] = (),
    trial: bool = False,
    bundles: bool = False,
) -> Verdict:
    """Whether the artifact serves this module on this machine, with every reason why not.

    Args:
        manifest: the artifact's.
        facts: the module's.
        machine: `probe.this_machine(facts.device)`.
        records: verification records, see `Store.verifications`.
        trial: it is being verified: what only a verification record could vouch for is let through.
        bundles: JIT-cache bundles are taken too.
    """
    torch = verified_torch((*manifest.verification, *records))
    target = judge_target(
        manifest.target, machine, verified_torch=torch | {machine.torch} if trial else torch
    )
    reasons = [
        *([LEFT_OUT] if manifest.backend == INDUCTOR_CACHE and not bundles else []),
        *_module_reasons(manifest, facts),
        *_state_reasons(manifest, facts),
        *(target.reasons if isinstance(target, Rejected) else ()),
        *missing(required(manifest.parts), facts.versions),
    ]
    return verdict_of(reasons, None if isinstance(target, Rejected) else target.note)


def rank(
    manifest: Described, machine: Target, *, records: Iterable[Mapping[str, Any]] = ()
) -> tuple[bool, bool, int, bool, str]:
    """A sort key, best first, for artifacts that `judge` accepts.

    Compiled ahead of time before bundles, exact before dynamic, this architecture before the
    nearest lower one, verified before unverified; then the key, so that the order never depends on
    the file system.
    """
    level = re.search(r"(\d+)[af]?$", manifest.target.arch)
    unverified = not verified(manifest, machine, records=records)
    bundle, nearness = manifest.backend != AOT, -int(level[1]) if level else 0
    return bundle, manifest.signature.dynamic, nearness, unverified, manifest.key


def verified(
    manifest: Described, machine: Target, *, records: Iterable[Mapping[str, Any]] = ()
) -> bool:
    """Whether a record says that the artifact passed on a machine of this architecture."""
    machines = _passed_on((*manifest.verification, *records))
    wanted = machine.device, machine.arch
    return any((found.get("device"), found.get("arch")) == wanted for found in machines)


def verified_torch(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """The full torch versions with which the records say that the artifact passed."""
    versions = (found.get("torch") for found in _passed_on(records))
    return frozenset(v for v in versions if isinstance(v, str))


def _passed_on(records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The targets of the machines on which the records say that the artifact passed."""
    for record in records:
        found = record.get("target")
        if record.get("passed") is True and isinstance(found, Mapping):
            yield found


def architecture_reasons(built: ModuleIdentity, here: ModuleIdentity) -> Iterator[str]:
    """Why an artifact of `built` is of another architecture than the module `here`."""
    if built.class_name != here.class_name:
        yield f"It is a {built.class_name}, and the module is a {here.class_name}."
    elif built.config_sha256 != here.config_sha256:
        differing = _spelled(json_differences("", built.config, here.config))
        yield f"The module's config isn't the one it was built from: {differing}."


def _module_reasons(manifest: Described, facts: ModuleFacts) -> Iterator[str]:
    built, here = manifest.module, facts.identity
    yield from architecture_reasons(built, here)
    if built.class_name != here.class_name:
        return
    if built.source_sha256 != here.source_sha256:
        versions = _versions(manifest, facts)
        yield f"The source of {here.class_name} isn't what it was built from{versions}."
    if manifest.precision != facts.precision:
        yield f"It is built for {manifest.precision}, and the pipeline is in {facts.precision}."
    if manifest.target.device != facts.device:
        yield f"It is built for {manifest.target.device}, and the module is on {facts.device}."


def _versions(manifest: Described, facts: ModuleFacts) -> str:
    """Which versions differ of what the source came from: diffusers, torchao."""
    recorded = next((p.value for p in manifest.parts if p.name == "versions"), None)
    if not isinstance(recorded, Mapping):
        return ""
    return "".join(
        f" ({name} {recorded[name]}, here {facts.versions[name]})"
        for name in ("diffusers", "torchao")
        if name in recorded and name in facts.versions and recorded[name] != facts.versions[name]
    )


def _state_reasons(manifest: Described, facts: ModuleFacts) -> Iterator[str]:
    here = json.loads(canonical_bytes(dict(facts.state)))
    differing = _spelled(json_differences("", manifest.state, here))
    if differing:
        yield f"The module's state isn't the one that was exported: {differing}."
    if differing and manifest.backend == INDUCTOR_CACHE:
        yield from _preparing(manifest.state, here)


def _preparing(built: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """What to call first: a bundle is of the module as its recipe prepares it, by methods of the
    module's own, whose call is its owner's."""
    if built.get("fused") and not here.get("fused"):
        yield (
            "A bundle serves the module as its recipe prepares it: call its "
            "fuse_qkv_projections() before aotbuild.load."
        )
    elif built.get("processors") != here.get("processors"):
        yield (
            f"A bundle serves the module as its recipe prepares it, with {built.get('processors')}:"
            " call its set_attn_processor(...) before aotbuild.load."
        )


def _spelled(differences: Iterable[tuple[str, Any, Any]]) -> str:
    """ "use_tiling is true (built with false), and 2 more"."""
    found = list(differences)
    shown = [f"{path} is {_short(b)} (built with {_short(a)})" for path, a, b in found[:_SHOWN]]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ", ".join(shown + more)


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
