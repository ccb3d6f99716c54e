"""What `load` hands back: what serves, what was turned down and why, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotbuild.errors import ReleasedError
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.component import Component
from aotbuild.loaders.dispatch import Dispatcher
from aotbuild.loaders.swap import Swap
from aotbuild.loaders.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An artifact that was turned down, with every reason; `key` is its folder where unreadable."""

    unit: str
    key: str
    slug: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} ({self.slug}): {' '.join(self.reasons)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A swapped method: the artifacts behind it, by rank."""

    name: str
    component: Component
    dispatcher: Dispatcher
    swap: Swap


class Loaded:
    """The pipeline's swapped components."""

    def __init__(self, units: list[Unit], rejections: list[Rejection], source: str) -> None:
        self._units = units
        self._rejections = rejections
        self._source = source
        self._restored = False

    def refresh(self) -> None:
        """Judge every weight again, derive what is derived, bind anew.

        What was moved or replaced is noticed at the next call anyway; this takes the time now.

        Raises:
            ReleasedError: the pipeline was restored, or eager's weights were freed.
        """
        if self._restored:
            raise ReleasedError(
                "refresh() after restore(): nothing is loaded any more. Call aotbuild.load again."
            )
        for component in self._components():
            if component.freeing.freed:
                raise component.freeing.refusal("refresh()")
        for component in self._components():
            component.look_again()
            component.observe()
            with component.gate.alone():
                for artifact in self._artifacts(component):
                    artifact.binding.refit()

    def restore(self) -> None:
        """The pipeline exactly as it was: methods, layouts, values. A second time does nothing.

        Raises:
            ReleasedError: eager's weights were freed; everything stays as it is.
        """
        for component in self._components():
            component.freeing.keep()
        self._restored = True
        for unit in self._units:
            unit.swap.undo()
        for component in self._components():
            with component.gate.alone():
                for unit in self._units:
                    if unit.component is component:
                        unit.dispatcher.released = True
                for artifact in self._artifacts(component):
                    artifact.binding.release()
                component.weights.restore()

    def free(self) -> None:
        """Bind what isn't bound yet, freeing the weights that it leaves eager alone to read."""
        for component in self._components():
            artifacts = self._artifacts(component)
            if any(a.quantized for a in artifacts) and not component.weightless:
                component.freeing.begin(artifacts)

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Per unit: hits by artifact key, fallbacks by kind, seconds and bytes. Safe to poll."""
        return {
            unit.name: {
                "hits": {a.key: a.hits for a in unit.dispatcher.artifacts},
                "fallbacks": dict(unit.dispatcher.fallbacks),
                "load_s": sum(a.load_s for a in unit.dispatcher.artifacts),
                "bind_s": sum(a.bind_s for a in unit.dispatcher.artifacts),
                "weights_s": sum(a.weights_s for a in unit.dispatcher.artifacts),
                "derived_bytes": unit.component.weights.derived_bytes,
                "extra_bytes": unit.component.weights.derived.extra_bytes,
                "packed_bytes": _packed_bytes(unit),
                "freed_bytes": sum(unit.component.weights.derived.freed.values()),
            }
            for unit in self._units
        }

    def to_json(self) -> dict[str, Any]:
        """`report` for machines."""
        metrics = self.metrics()
        return {
            "source": self._source,
            "restored": self._restored,
            "units": {
                u.name: {
                    **metrics[u.name],
                    "artifacts": [_artifact_json(a) for a in u.dispatcher.artifacts],
                    "eager_because": dict(u.dispatcher.last_reason),
                }
                for u in self._units
            },
            "rejected": [
                {"unit": r.unit, "key": r.key, "slug": r.slug, "reasons": list(r.reasons)}
                for r in self._rejections
            ],
        }

    def report(self) -> str:
        """Per unit: which artifacts serve, what ran eagerly; every rejected one; and why."""
        lines = [f"{self._source}{' (restored)' if self._restored else ''}"]
        for unit in self._units:
            lines += _unit_lines(unit)
        for name in sorted({r.unit for r in self._rejections}):
            lines.append(f"{name}: rejected")
            lines += [f"  {r}" for r in self._rejections if r.unit == name]
        if not self._units:
            lines.append("Nothing is swapped: every component runs eagerly.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<aotbuild.Loaded {', '.join(u.name for u in self._units) or 'nothing'}>"

    def _components(self) -> list[Component]:
        return list({id(u.component): u.component for u in self._units}.values())

    def _artifacts(self, component: Component) -> list[Artifact]:
        mine = (u for u in self._units if u.component is component)
        return [a for u in mine for a in u.dispatcher.artifacts]


def _artifact_json(artifact: Artifact) -> dict[str, Any]:
    return {
        "key": artifact.manifest.key,
        "signature": list(artifact.manifest.signature.sizes()),
        "dynamic": artifact.manifest.signature.dynamic,
        "verified": artifact.verified,
        "checked": artifact.checked,
        "disabled": artifact.disabled,
        "unfit": artifact.binding.unfit,
        "hits": artifact.hits,
        "load_s": artifact.load_s,
        "weights_s": artifact.weights_s,
        "bind_s": artifact.bind_s,
    }


def _unit_lines(unit: Unit) -> list[str]:
    lines = [f"{unit.name}: {'restored' if unit.dispatcher.released else 'swapped'}"]
    lines[0] += _memory(unit.component.weights)
    if packed := _packed_bytes(unit):
        lines[0] += f", {packed / 1e6:.1f} MB of packed constants, and no weights of its own"
    for artifact in unit.dispatcher.artifacts:
        kind = "dynamic" if artifact.manifest.signature.dynamic else "exact"
        kind += " int8" if artifact.quantized else ""
        kind += " packed" if artifact.manifest.packed is not None else ""
        seconds = artifact.load_s + artifact.weights_s + artifact.bind_s
        lines.append(
            f"  {artifact.key} {kind}, {next(artifact.manifest.signature.sizes(), 'no tensors')}, "
            f"{_trust(artifact)}; loaded and bound in {seconds * 1e3:.0f} ms; {artifact.hits} calls"
        )
    for kind, count in sorted(unit.dispatcher.fallbacks.items()):
        lines.append(f"  {count} eager ({kind}): {unit.dispatcher.last_reason[kind]}")
    return lines


def _packed_bytes(unit: Unit) -> int:
    """Bytes of packed constants that its artifacts bind, counted once for those that share."""
    records = {
        a.manifest.packed.file.sha256: a.packed_bytes
        for a in unit.dispatcher.artifacts
        if a.manifest.packed is not None
    }
    return sum(records.values())


def _memory(weights: Weights) -> str:
    """What the component's artifacts hold, and what eager gave up; "" for nothing."""
    shared, copied = weights.derived_bytes, weights.derived.copied_bytes
    extra, freed = weights.derived.extra_bytes - copied, sum(weights.derived.freed.values())
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


def _trust(artifact: Artifact) -> str:
    if artifact.disabled:
        return f"disabled: {artifact.disabled}"
    if artifact.binding.unfit:
        return f"waiting for its weights: {artifact.binding.unfit}"
    if artifact.verified:
        return "verified"
    return "first call agreed with eager" if artifact.checked else "compares its first call"
