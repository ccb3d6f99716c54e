"""Build a component from its config without weights, or with random ones. Loads no checkpoint."""

from __future__ import annotations

import contextlib
import copy
import difflib
import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from aotbuild.errors import BuildError, RecipeError

BIAS_SCALE = 0.02
NORM_SCALE = 0.05


def build_module(config: Mapping[str, Any], dtype: str) -> nn.Module:
    """The module of a component config: parameters on the meta device, buffers real.

    Args:
        config: a component's config, with `_class_name`.
        dtype: the precision that the pipeline is loaded in, as torch names it: "float16".

    Returns:
        A module in evaluation mode whose tensors have the dtypes that `from_pretrained` gives:
        what a checkpoint holds is in `dtype`, except below `_keep_in_fp32_modules`; buffers that
        the constructor computes and no checkpoint holds stay as it computed them.

    Raises:
        RecipeError: the class isn't one of diffusers' models, or refuses the config.

    Source: diffusers `models/modeling_utils.py`, `from_pretrained` and
    `load_model_dict_into_meta`, 0.36 and 0.42.
    """
    cls = model_class(config)
    with quiet(), default_dtype(dtype), empty_parameters():
        try:
            module: nn.Module = cls.from_config(dict(config))  # type: ignore[attr-defined]
        except (TypeError, ValueError, KeyError, RuntimeError) as e:
            raise RecipeError(
                f"{cls.__name__} can't be built from its config: {one_line(e)}. "
                "Check the file against the installed diffusers."
            ) from e
    _cast_saved(module, getattr(torch, dtype))
    return module.eval()


def outline(module: nn.Module) -> nn.Module:
    """A copy of `module` without values: parameters and buffers on the meta device.

    Building one from the config instead computes its tables again: gigabytes of numbers for those
    of SD 3.
    """
    memo: dict[int, Any] = {id(b): b.to("meta") for b in module.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), False) for p in module.parameters()}
    return copy.deepcopy(module, memo)


def use_tiling(module: nn.Module, tiling: bool) -> nn.Module:
    """`module`, with `enable_tiling` called where `tiling` says so.

    Raises:
        RecipeError: the class works on no tiles.
    """
    if tiling:
        enable: Callable[[], None] | None = getattr(module, "enable_tiling", None)
        if enable is None:
            raise RecipeError(f"{type(module).__name__} has no tiles: leave out tiling.")
        enable()
    return module


def one_line(error: Exception) -> str:
    """A library's own words within a sentence of ours; some print whole tensors in theirs."""
    text = " ".join(str(error).split())
    return text.rstrip(".") if len(text) <= 400 else f"{text[:400]} …"


def model_class(config: Mapping[str, Any]) -> type[nn.Module]:
    """The diffusers class that a component config names.

    Raises:
        RecipeError: no `_class_name`, or no model of that name; with the nearest one.
    """
    name = config.get("_class_name")
    if not isinstance(name, str):
        raise RecipeError("A component config has no `_class_name`: it isn't one of diffusers'.")
    found = diffusers_class(name)
    if not issubclass(found, nn.Module):
        raise RecipeError(f"{name} isn't a model but a {found.__mro__[1].__name__}.")
    return found


def diffusers_class(name: str) -> type[Any]:
    """The class of that name in diffusers' public namespace.

    Raises:
        RecipeError: there is none; with the nearest name.
    """
    import diffusers

    found = getattr(diffusers, name, None)
    if not isinstance(found, type):
        near = difflib.get_close_matches(name, dir(diffusers), n=1)
        hint = f" The nearest is {near[0]}." if near else ""
        raise RecipeError(
            f"diffusers {diffusers.__version__} has no class {name!r}.{hint} A newer diffusers "
            "may have it."
        )
    return found


def fill_random(module: nn.Module, seed: int) -> None:
    """Give every meta parameter of `module` seeded random values on the CPU, in place.

    Each value depends on its parameter's name, the seed and the shape alone. They are drawn in
    float32 and rounded to the parameter's dtype: the same seed in float64 gives the float32
    weights, and `module.float()` after a fill in float16 gives the float16 weights.

    Matrices and kernels are normal with variance 1 / fan-in, biases small, and every other vector
    (the scale of a norm) near 1, so that activations stay within half precision in deep models.

    Raises:
        BuildError: a buffer is on the meta device; nobody knows its values.
    """
    lost = [n for n, b in module.named_buffers() if b.is_meta]
    if lost:
        raise BuildError(
            f"{type(module).__name__}: buffer {lost[0]} has no values to compute with."
        )
    filled: dict[int, nn.Parameter] = {}
    for path, owner in module.named_modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in filled:
                value = _draw(f"{path}.{name}" if path else name, parameter, seed)
                filled[id(parameter)] = nn.Parameter(value, parameter.requires_grad)
            owner._parameters[name] = filled[id(parameter)]


def convert_tensors(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace every parameter and buffer by `convert` of it; tied ones stay tied."""
    done: dict[int, torch.Tensor] = {}
    for owner in module.modules():
        for table in (owner._parameters, owner._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                if id(tensor) not in done:
                    new = convert(tensor)
                    if isinstance(tensor, nn.Parameter):
                        new = nn.Parameter(new, requires_grad=False)
                    done[id(tensor)] = new
                table[name] = done[id(tensor)]  # type: ignore[assignment]


def adopt_attributes(module: nn.Module) -> tuple[str, ...]:
    """Make tensors that are plain attributes non-persistent buffers; their paths.

    Export needs it (an attribute becomes an anonymous constant, a buffer keeps its name), nothing
    else does: the stock module stays as it is, and the path finds the tensor there all the same.
    """
    paths = []
    for path, owner in module.named_modules():
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                delattr(owner, name)
                owner.register_buffer(name, value, persistent=False)
                paths.append(f"{path}.{name}" if path else name)
    return tuple(paths)


@contextlib.contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """torch's default dtype, for the time of a constructor."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep diffusers' advice to people (deprecations, unused config entries) off the terminal."""
    logger = logging.getLogger("diffusers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def empty_parameters() -> Iterator[None]:
    """Constructors leave parameters on the meta device, for the time of a block."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        yield


def _cast_saved(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast what a checkpoint holds, in place."""
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    saved = set(module.state_dict())
    for path, owner in module.named_modules():
        for table in (owner._parameters, owner._buffers):
            for name, tensor in list(table.items()):
                full = f"{path}.{name}" if path else name
                if tensor is None or full not in saved or not tensor.is_floating_point():
                    continue
                cast = tensor.detach().to(torch.float32 if kept & set(full.split(".")) else dtype)
                if isinstance(tensor, nn.Parameter):
                    cast = nn.Parameter(cast, tensor.requires_grad)
                table[name] = cast


def _draw(name: str, like: torch.Tensor, seed: int) -> torch.Tensor:
    text = f"{seed}:{name}:{tuple(like.shape)}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    generator = torch.Generator().manual_seed(number)
    value = torch.empty(like.shape, dtype=torch.float32).normal_(generator=generator)
    if like.numel() > max(like.shape, default=1):
        value *= (like.shape[0] / like.numel()) ** 0.5
    elif "bias" in name.rsplit(".", 1)[-1]:
        value *= BIAS_SCALE
    else:
        value.mul_(NORM_SCALE).add_(1)
    if (like.dtype, like.stride()) == (value.dtype, value.stride()):
        return value
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).copy_(value)
