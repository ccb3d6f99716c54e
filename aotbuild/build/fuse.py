"""Query, key and value projections joined into one matrix product, as diffusers joins them."""

from __future__ import annotations

from torch import nn

from aotbuild.errors import RecipeError

FUSED = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
}
"""A fused projection of diffusers' attentions, and the projections it is joined from."""


def fuse_projections(module: nn.Module) -> None:
    """Join the projections of `module`'s attentions, in place; the parts stay beside them.

    Raises:
        RecipeError: the class can't.
    """
    fuse = getattr(module, "fuse_qkv_projections", None)
    if fuse is None:
        raise RecipeError(
            f"{type(module).__name__} can't fuse its projections: set fuse_qkv = false."
        )
    try:
        fuse()
    except (ValueError, AttributeError, RuntimeError) as e:
        raise RecipeError(
            f"{type(module).__name__} can't fuse its projections ({e}): set fuse_qkv = false."
        ) from e
    if not any(name in FUSED for child in module.modules() for name in child._modules):
        raise RecipeError(
            f"diffusers fuses none of {type(module).__name__}'s projections: set fuse_qkv = false."
        )
