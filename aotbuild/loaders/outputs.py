"""The output objects in which some methods answer: their classes found by name, never imported."""

from __future__ import annotations

import sys
from dataclasses import is_dataclass
from typing import Any


class Output(dict[str, Any]):
    """Stands in for an output class whose library isn't loaded: fields by name, item and order."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the output has no {name!r}") from None

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


def output_class(name: str) -> type[Any] | None:
    """The class that a manifest names with its module, or None.

    A manifest may be anybody's: what it names is taken only from a module that is loaded already,
    and only if it is a dataclass that is a dict, as the output classes of diffusers are.
    """
    module, _, attribute = name.rpartition(".")
    found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    is_output = isinstance(found, type) and issubclass(found, dict) and is_dataclass(found)
    return found if is_output else None
