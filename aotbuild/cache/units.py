"""Names of units: a component's own, "unet", or with a part of it, "vae.decode"."""

from __future__ import annotations


def is_unit_of(unit: str, name: str) -> bool:
    """Whether `name` names the unit, or the component that it is of."""
    return unit == name or unit.startswith(f"{name}.")
