"""What `load` hands back: what serves, what was turned down and why, and the way back.

How a report is worded `reporting` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotbuild.errors import ReleasedError
from aotbuild.loaders.artifact import Artifact
from aotbuild.loaders.component import Component
from aotbuild.loaders.reporting import metrics_of, unit_json, unit_lines
from aotbuild.loaders.unit import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """An artifact that was turned down, with every reason; `key` is its folder where unreadable."""

    unit: str
    key: str
    slug: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} ({self.slug}): {' '.join(self.reasons)}"


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
        """Per unit: hits by artifact key, fallbacks by kind, seconds and bytes. Safe to poll.

        Repeated blocks of one class are one unit, and `blocks` says how many there are.
        """
        return {name: metrics_of(units) for name, units in self._by_name().items()}

    def to_json(self) -> dict[str, Any]:
        """`report` for machines."""
        return {
            "source": self._source,
            "restored": self._restored,
            "units": {name: unit_json(units) for name, units in self._by_name().items()},
            "rejected": [
                {"unit": r.unit, "key": r.key, "slug": r.slug, "reasons": list(r.reasons)}
                for r in self._rejections
            ],
        }

    def report(self) -> str:
        """Per unit: which artifacts serve, what ran eagerly; every rejected one; and why."""
        lines = [f"{self._source}{' (restored)' if self._restored else ''}"]
        for name, units in self._by_name().items():
            lines += unit_lines(name, units)
        for name in sorted({r.unit for r in self._rejections}):
            lines.append(f"{name}: rejected")
            lines += [f"  {r}" for r in self._rejections if r.unit == name]
        if not self._units:
            lines.append("Nothing is swapped: every component runs eagerly.")
        return "\n".join(lines)

    def _by_name(self) -> dict[str, list[Unit]]:
        found: dict[str, list[Unit]] = {}
        for unit in self._units:
            found.setdefault(unit.name, []).append(unit)
        return found

    def __repr__(self) -> str:
        return f"<aotbuild.Loaded {', '.join(self._by_name()) or 'nothing'}>"

    def _components(self) -> list[Component]:
        return list({id(u.component): u.component for u in self._units}.values())

    def _artifacts(self, component: Component) -> list[Artifact]:
        mine = (u for u in self._units if u.component is component)
        return [a for u in mine for a in u.dispatcher.artifacts]
