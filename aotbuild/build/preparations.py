"""Preparations by name, which a recipe chooses: what a model's export needs beyond the fields.

Each computes what the stock module does, from tensors that the constant plan finds in that one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn

from aotbuild.errors import RecipeError
from aotbuild.loaders.rules import real_pairs

_TABLES = ("pos_freqs", "neg_freqs")
"""A Qwen-Image rotary embedding's tables of complex numbers, (4096, half of a head's width)."""

_ROTATE = "apply_rotary_emb_qwen"
"""The function of diffusers by which Qwen-Image's attention turns queries and keys."""


def real_rotary(module: nn.Module) -> None:
    """Qwen-Image's rotary embedding in real arithmetic, in place: Inductor compiles no complex one.

    The tables become their numbers, real and imaginary part by turns, twice as wide; so diffusers'
    own code cuts them as before, told of twice the widths. The attention turns by `rotate`.

    Raises:
        RecipeError: the module has no such embedding, or no attention that uses it.

    Source: diffusers `models/transformers/transformer_qwenimage.py`, 0.36 and 0.42.
    """
    ropes = [p for p, m in module.named_modules() if _is_complex_rope(m)]
    attentions: list[Any] = [m for m in module.modules() if _rotates(vars(m).get("processor"))]
    if not ropes or not attentions:
        raise RecipeError(
            f"{type(module).__name__} has no rotary embedding like Qwen-Image's: leave "
            "'real_rotary' out of its preparations."
        )
    for path in ropes:
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, _real_rope(module.get_submodule(path)))
    for attention in attentions:
        attention.processor = _turning_by_reals(vars(attention)["processor"])


NAMED: Mapping[str, Callable[[nn.Module], None]] = {"real_rotary": real_rotary}
"""Each changes a module in place, whose parameters may be on the meta device."""


def rotate(x: torch.Tensor, numbers: torch.Tensor, **_: Any) -> torch.Tensor:
    """Turn each pair of `x` as diffusers does by complex products, in float32 too.

    Args:
        x: queries or keys, (batch, tokens, heads, width).
        numbers: (tokens, width), cosine and sine of each pair's angle by turns; or what diffusers'
            own embedding gives to a block that is compiled alone, (tokens, width / 2) complex.
    """
    if numbers.is_complex():
        numbers = real_pairs(numbers).flatten(1)
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    angles = numbers.reshape(numbers.shape[0], 1, -1, 2)
    cosine, sine = angles[..., :1], angles[..., 1:]
    signs = torch.arange(-1, 2, 2, device=x.device)  # of the sine, in a real and imaginary part
    turned = pairs * cosine + pairs.flip(-1) * (sine * signs)
    return turned.flatten(-2).type_as(x)


def _is_complex_rope(module: nn.Module) -> bool:
    tables = (getattr(module, name, None) for name in _TABLES)
    found = all(isinstance(t, torch.Tensor) and t.is_complex() for t in tables)
    return found and hasattr(module, "axes_dim")


def _real_rope(rope: nn.Module) -> nn.Module:
    """A copy of `rope` over real tables; the class remembers what it made for the instance."""
    made: Any = copy.deepcopy(rope)
    for name in _TABLES:
        numbers = real_pairs(getattr(made, name)).flatten(1)
        delattr(made, name)
        made.register_buffer(name, numbers, persistent=False)
    made.axes_dim = [2 * width for width in made.axes_dim]
    return made  # type: ignore[no-any-return]


def _rotates(processor: object) -> bool:
    code = getattr(_call_of(processor), "__code__", None)
    return code is not None and _ROTATE in code.co_names


def _call_of(processor: Any) -> Any:
    return inspect.unwrap(type(processor).__call__)


def _turning_by_reals(processor: object) -> object:
    """`processor`, whose own code finds `rotate` where it looks for diffusers' function."""
    stock, cls = _call_of(processor), type(processor)
    names = {**stock.__globals__, _ROTATE: rotate}
    own = FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
    own.__kwdefaults__ = stock.__kwdefaults__
    made: object = object.__new__(type(cls.__name__, (cls,), {"__call__": own}))
    vars(made).update(vars(processor))
    return made
