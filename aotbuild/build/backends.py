"""Whether an attention backend can be built here, and setting it. Chooses none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aotbuild import probe
from aotbuild.cache.requirements import missing
from aotbuild.errors import RecipeError, ToolchainError, UsageError
from aotbuild.loaders.attending import ATTRIBUTE, STOCK
from aotbuild.recipe.backends import BACKENDS, requirements

if TYPE_CHECKING:
    from torch import nn


@contextlib.contextmanager
def stock_attention() -> Iterator[None]:
    """The dispatcher's own choice, whatever this process or its environment has named instead."""
    from diffusers.models.attention_dispatch import attention_backend

    with attention_backend(STOCK):
        yield


def check_backend(component: str, attention: str, device: str) -> None:
    """Refuse a backend that can't be built for `device` ("cpu" or "cuda") on this machine.

    Raises:
        UsageError: it doesn't run there.
        ToolchainError: what its operators come from isn't installed here, or is too old.
    """
    backend = BACKENDS[attention]
    if device not in backend.devices:
        where = " and ".join(backend.devices) or "hardware that aotbuild doesn't build for"
        raise UsageError(
            f"{component}: attention {attention!r} is for {where}, not for {device}. Name sdpa, "
            "or leave it out."
        )
    if backend.requires is not None:
        needed = requirements(attention)
        found = probe.installed(needed)
        if find_spec(backend.requires.module) is None:
            found = dict.fromkeys(needed)
        for reason in missing(needed, found):
            raise ToolchainError(
                f"{component}: attention {attention!r}. {reason} Or name sdpa, which needs nothing."
            )


def set_backend(module: nn.Module, attention: str) -> None:
    """Let `module`'s attentions ask for a backend of diffusers' dispatcher, in place.

    Backends of torch's own kernels are put into the graph instead (`attention`).

    Raises:
        RecipeError: it has attentions that don't ask the dispatcher, as UNets do.
    """
    if not BACKENDS[attention].dispatched:
        return
    from aotbuild.loaders.state import processor_of

    processors: list[Any] = [p for m in module.modules() if (p := processor_of(m)) is not None]
    deaf = sorted({type(p).__name__ for p in processors if not hasattr(p, ATTRIBUTE)})
    if deaf or not processors:
        raise RecipeError(
            f"{type(module).__name__} can't be built with attention {attention!r}: its processors "
            f"({', '.join(deaf) or 'none'}) ask torch for attention, not diffusers' dispatcher. "
            "Name sdpa, math, or a kernel of torch: _native_flash, _native_efficient, "
            "_native_cudnn."
        )
    from diffusers.models.attention_dispatch import AttentionBackendName

    for processor in processors:
        setattr(processor, ATTRIBUTE, AttentionBackendName(attention))
