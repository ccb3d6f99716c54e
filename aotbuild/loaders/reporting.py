"""What serves, counted and put into words: a component, or all of its blocks of one class together.

Every function takes the units of one name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aotbuild.cache.backend import AOT
from aotbuild.cache.covers import Covered
from aotbuild.cache.quantization import quantization
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.constants import RELEASED
from aotbuild.loaders.unit import Unit
from aotbuild.loaders.weights import Weights


def metrics_of(units: Sequence[Unit]) -> dict[str, Any]:
    """Hits by artifact key, fallbacks by kind, seconds and bytes, over all of `units`."""
    artifacts = [a for u in units for a in u.dispatcher.artifacts]
    weights = [u.component.weights for u in units]
    hits: Counter[str] = Counter()
    for artifact in artifacts:
        hits[artifact.key] += artifact.hits
    return {
        "blocks": len(units) if _regional(units) else None,
        "hits": dict(hits),
        "fallbacks": dict(units[0].dispatcher.tally.fallbacks),
        "load_s": sum(a.load_s for a in artifacts),
        "bind_s": sum(a.bind_s for a in artifacts),
        "weights_s": sum(a.weights_s for a in artifacts),
        "derived_bytes": sum(w.derived_bytes for w in weights),
        "extra_bytes": sum(w.derived.extra_bytes for w in weights),
        "packed_bytes": _packed_bytes(units),
        "freed_bytes": sum(sum(w.derived.freed.values()) for w in weights),
    }


def unit_json(units: Sequence[Unit]) -> dict[str, Any]:
    """`metrics_of`, each artifact, and why calls ran eagerly."""
    return {
        **metrics_of(units),
        "artifacts": [_artifact_json(found) for found in _by_key(units)],
        "eager_because": dict(units[0].dispatcher.tally.last_reason),
    }


def unit_lines(name: str, units: Sequence[Unit]) -> Iterator[str]:
    """Lines of a report."""
    how = "restored" if units[0].dispatcher.released else "swapped"
    head = f"{name}: {how}{f' in {len(units)} blocks' if _regional(units) else ''}"
    head += _memory([u.component.weights for u in units])
    if packed := _packed_bytes(units):
        head += f", {packed / 1e6:.1f} MB of packed constants, and no weights of its own"
    yield head
    for found in _by_key(units):
        yield _artifact_line(found, blocks=_regional(units))
    tally = units[0].dispatcher.tally
    for kind, count in sorted(tally.fallbacks.items()):
        yield f"  {count} eager ({kind}): {tally.last_reason[kind]}"


def _regional(units: Sequence[Unit]) -> bool:
    return units[0].dispatcher.artifacts[0].manifest.scope != "full"


def _by_key(units: Sequence[Unit]) -> list[list[Artifact]]:
    """For each artifact what is bound of it, block by block."""
    found: dict[str, list[Artifact]] = {}
    for unit in units:
        for artifact in unit.dispatcher.artifacts:
            found.setdefault(artifact.manifest.key, []).append(artifact)
    return list(found.values())


def _artifact_json(found: Sequence[Artifact]) -> dict[str, Any]:
    first = found[0]
    return {
        "key": first.manifest.key,
        "signature": list(first.manifest.signature.sizes()),
        "covers": Covered.of(first.manifest).to_json(),
        "quantization": quantization(first.manifest),
        "dynamic": first.manifest.signature.dynamic,
        "verified": first.verified,
        "checked": all(a.checked for a in found),
        "disabled": next((a.disabled for a in found if a.disabled), None),
        "unfit": next((a.binding.unfit for a in found if a.binding.unfit), None),
        "blocks": len(found) if first.manifest.scope != "full" else None,
        "hits": sum(a.hits for a in found),
        "jit_cache": _jit_counts(found),
        "load_s": sum(a.load_s for a in found),
        "weights_s": sum(a.weights_s for a in found),
        "bind_s": sum(a.bind_s for a in found),
    }


def _artifact_line(found: Sequence[Artifact], *, blocks: bool) -> str:
    manifest = found[0].manifest
    kind = "dynamic" if manifest.signature.dynamic else "exact"
    kind += f" {manifest.precision}{' int8' if found[0].quantized else ''}"
    kind += " jit-cache" if manifest.backend != AOT else ""
    kind += " packed" if manifest.packed is not None else ""
    kind += f" in {len(found)} blocks" if blocks else ""
    seconds = sum(a.load_s + a.weights_s + a.bind_s for a in found)
    return (
        f"  {found[0].key} {kind}, {next(manifest.signature.sizes(), 'no tensors')}, "
        f"{_trust(found)}; loaded and bound in {seconds * 1e3:.0f} ms; "
        f"{sum(a.hits for a in found)} calls{_cache_use(_jit_counts(found))}"
    )


def _jit_counts(found: Sequence[Artifact]) -> dict[str, int] | None:
    """Of a bundle, what compiling found in the caches, see `jit.COUNTED`; None of others."""
    counts = [c for a in found if (c := a.jit_counts) is not None]
    return {name: sum(c[name] for c in counts) for name in counts[0]} if counts else None


def _cache_use(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return ""
    if not any(counts.values()):
        return "; nothing was looked up in Inductor's caches yet"
    bypasses = counts["graph_bypasses"] + counts["autograd_bypasses"]
    return (
        f"; Inductor's cache of graphs: {counts['graph_hits']} hits, {counts['graph_misses']} "
        f"misses; AOTAutograd's: {counts['autograd_hits']} hits, {counts['autograd_misses']} misses"
        + (f"; {bypasses} went past them" if bypasses else "")
    )


def _packed_bytes(units: Sequence[Unit]) -> int:
    """Bytes of packed constants that the artifacts bind, counted once for those that share."""
    records = {
        a.manifest.packed.file.sha256: a.packed_bytes
        for u in units
        for a in u.dispatcher.artifacts
        if a.manifest.packed is not None
    }
    return sum(records.values())


def _memory(weights: Sequence[Weights]) -> str:
    """What the artifacts hold, and what eager gave up; "" for nothing."""
    shared = sum(w.derived_bytes for w in weights)
    copied = sum(w.derived.copied_bytes for w in weights)
    extra = sum(w.derived.extra_bytes for w in weights) - copied
    freed = sum(sum(w.derived.freed.values()) for w in weights)
    text = f", {shared / 1e6:.1f} MB laid out anew and shared with eager" if shared else ""
    text += f", {copied / 1e6:.1f} MB of tables copied for its device" if copied else ""
    if freed:
        return (
            f"{text}, {extra / 1e6:.1f} MB of int8 weights in place of {freed / 1e6:.1f} MB that "
            "eager had: it can't run any more"
        )
    if extra:
        text += (
            f", {extra / 1e6:.1f} MB of int8 weights beside eager's own (fallback='error' frees "
            "what only eager reads)"
        )
    return text


def _trust(found: Sequence[Artifact]) -> str:
    """Of the first that is worst off: disabled, unbound, yet to be compared."""
    for artifact in found:
        if artifact.disabled:
            return f"disabled{_some(found, 'disabled')}: {artifact.disabled}"
    for artifact in found:
        if artifact.binding.unfit == RELEASED:
            return "given back by restore()"
        if artifact.binding.unfit:
            return f"waiting for its weights: {artifact.binding.unfit}"
    if found[0].verified:
        return "verified"
    checked = all(a.checked for a in found)
    return "first call agreed with eager" if checked else "compares its first call"


def _some(found: Sequence[Artifact], name: str) -> str:
    """ " in 3" where it isn't all of them."""
    count = sum(bool(getattr(a, name)) for a in found)
    return f" in {count}" if count < len(found) else ""
