"""Which attention backend of diffusers' dispatcher a module asks for. Sets none.

Private names of diffusers, tried on 0.42.1, in `models/attention_dispatch.py`:
`_AttentionBackendRegistry._active_backend`, and the `_attention_backend` of its processors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

ATTRIBUTE = "_attention_backend"
"""Where a processor that asks the dispatcher keeps its own backend's name; None: the active one."""

STOCK = "native"
"""torch's own attention: what the dispatcher takes if nobody says otherwise."""


def active_backend() -> str:
    """What a processor without a backend of its own gets now, in this process.

    `set_attention_backend`, the context manager `attention_backend` and DIFFUSERS_ATTN_BACKEND
    change it for every pipeline.
    """
    dispatch = sys.modules.get("diffusers.models.attention_dispatch")
    registry = getattr(dispatch, "_AttentionBackendRegistry", None)
    return _name(getattr(registry, "_active_backend", None)) or STOCK


def attention_state(processors: Mapping[str, object]) -> str | dict[str, str] | None:
    """The backend of those processors that ask the dispatcher; by path, where they have several.

    None where it is the stock one.
    """
    asking = {path: p for path, p in processors.items() if hasattr(p, ATTRIBUTE)}
    found = {path: _name(getattr(p, ATTRIBUTE)) or active_backend() for path, p in asking.items()}
    kinds = set(found.values())
    if kinds <= {STOCK}:
        return None
    return kinds.pop() if len(kinds) == 1 else found


def _name(backend: object) -> str | None:
    """ "flash" of the dispatcher's enumeration, or of a plain string."""
    value = getattr(backend, "value", backend)
    return value if isinstance(value, str) else None
