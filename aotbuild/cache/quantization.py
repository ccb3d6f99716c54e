"""What `quant=` chooses: artifacts by how their component was to be quantized, and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aotbuild.cache.covers import Covered
from aotbuild.cache.item import Item
from aotbuild.cache.manifest import Manifest

INT8 = "int8_rows/"


def quantization(described: Manifest | Item) -> str:
    """ "none" or "int8dq": what its component was built with, as `build --quant` names it."""
    covers = described.covers if isinstance(described, Item) else Covered.of(described)
    if covers.quantization is not None or isinstance(described, Item):
        return covers.quantization or "none"
    return "int8dq" if any(c.rule.startswith(INT8) for c in described.constants) else "none"


def has_filter(described: Manifest | Item) -> bool:
    """Whether its recipe says which layers of the component int8 is for; an index doesn't tell."""
    if isinstance(described, Item):
        return False
    components = described.recipe.get("components")
    name = described.component.partition(".")[0]
    component = components.get(name) if isinstance(components, Mapping) else None
    return isinstance(component, Mapping) and component.get("int8") is not None


def otherwise_quantized(
    described: Manifest | Item, wanted: str | None, offered: Iterable[Manifest | Item]
) -> str | None:
    """Why it isn't what `quant=wanted` asks for; None where it is, or nothing is asked.

    A component that int8 isn't meant for is the same under either word.

    Args:
        offered: all artifacts of the component, itself among them.
    """
    found = quantization(described)
    if wanted is None or found == wanted:
        return None
    others = (o for o in offered if o.component == described.component)
    if found != "none" or has_filter(described) or any(quantization(o) == wanted for o in others):
        return f"It was built with --quant {found}, and quant={wanted!r} was asked for."
    return None
