"""What may stand in a signature where no tensor does: plain values, and markers of containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aotbuild.canonical import check_sizes, checked_list, matches, shown

CONTAINERS = ("dict", "list", "tuple")
ANSWERS = (*CONTAINERS, "object")
"""The kinds of container that a call may hold, and an answer."""

_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_CLASS = rf"{_NAME}(\.{_NAME})+"


def check_leaf(path: object, value: object, kinds: tuple[str, ...]) -> None:
    """Refuse with a ValueError what is neither a plain value nor a container of these kinds."""
    if not isinstance(path, str):
        raise ValueError(f"the path {shown(path)} isn't text")
    if value is None or isinstance(value, bool | int | float | str):
        return
    if not isinstance(value, dict) or len(value) != 1 or not {*value} <= {*kinds}:
        raise ValueError(f"{path or 'the call'}: {shown(value)} is neither a leaf nor a container")
    ((kind, content),) = value.items()
    if kind == "object":
        _check_object(path, content)
    elif kind != "dict":
        check_sizes(f"{path or 'the call'}: the length of a {kind}", (content,))
    elif not all(isinstance(k, str) for k in checked_list(f"{path}: keys", content)):
        raise ValueError(f"{path or 'the call'}: the keys {shown(content)} aren't all text")


def grow(leaves: Mapping[str, Any], path: str = "") -> Any:
    """The tree of a call whose leaves, and whose containers' markers, stand at `leaves`."""
    here = leaves[path]
    if not isinstance(here, dict):
        return here
    ((kind, content),) = here.items()
    names = content if kind == "dict" else [str(i) for i in range(content)]
    children = {n: grow(leaves, f"{path}.{n}" if path else n) for n in names}
    if kind == "dict":
        return children
    return tuple(children.values()) if kind == "tuple" else list(children.values())


def _check_object(path: str, content: object) -> None:
    """Refuse what doesn't name a class with its module, and fields of it."""
    names = checked_list(f"{path}: object", content)
    plain = all(isinstance(n, str) for n in names)
    if not plain or not names or not matches(_CLASS, names[0]):
        raise ValueError(f"{path or 'the answer'}: {shown(content)} isn't a class and its fields")
    if not all(matches(_NAME, n) for n in names[1:]):
        raise ValueError(f"{path or 'the answer'}: {shown(content)} has a field of no plain name")
