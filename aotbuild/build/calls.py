"""One recorded call of a component: arguments by name, no values. Makes no call itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import nn

from aotbuild.build.ip_adapter import add_ip_adapters
from aotbuild.build.modules import build_module, use_tiling
from aotbuild.cache.manifest import ModuleIdentity
from aotbuild.cache.signature import flatten
from aotbuild.canonical import digest
from aotbuild.errors import BuildError
from aotbuild.loaders.arguments import SCALAR

SCALARS = (type(None), bool, int, float, str)
VALUES_LIMIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Which repeated blocks of a component a recorded call is of.

    Attributes:
        paths: of those that are alike and got the call; the first stands for all.
        dtypes: parameter or buffer of the block -> dtype, of those that haven't the precision.
    """

    paths: tuple[str, ...]
    dtypes: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call that the pipeline makes of one unit, and what comes back.

    Attributes:
        unit: "unet", "vae.decode", "vae.encode"; of a block "unet.BasicTransformerBlock".
        component: the pipeline's name of the component, "vae".
        method: the method to swap: "forward", "decode", "_encode".
        call: argument name -> value; tensors are on the meta device, in the layout they came in.
        answer: what the method returned, tensors on the meta device.
        config: the component's config.
        identity: of the stock module, or of the block.
        state: of the same, as the pipeline left it at the call.
        precision: the dtype that the pipeline is loaded in, "float16".
        dtype: the module's own dtype at the call; "float32" for a VAE that the pipeline upcasts.
        casts: parameter or buffer -> dtype, of those that the pipeline has cast before the call.
        rules: argument -> the rule that gave it its canonical form, see `canonical`.
        ip_adapters: width of each IP-Adapter's image embeddings.
        tiling: whether `enable_tiling` was called before.
        values: path -> the numbers of each tensor of at most `VALUES_LIMIT` elements (time ids,
            timesteps), so that verification asks for something that a pipeline would.
        block: which blocks of the component it is a call of; None: of the component itself.
    """

    unit: str
    component: str
    method: str
    call: dict[str, Any]
    answer: Any
    config: dict[str, Any]
    identity: ModuleIdentity
    state: dict[str, Any]
    precision: str
    dtype: str
    casts: dict[str, str]
    rules: dict[str, str]
    values: dict[str, list[float]]
    ip_adapters: tuple[int, ...] = ()
    tiling: bool = False
    block: Block | None = None

    def module(self) -> nn.Module:
        """The stock component as it is at the call: parameters on the meta device, buffers real."""
        module = build_module(self.config, self.precision)
        add_ip_adapters(module, self.ip_adapters, self.precision)
        use_tiling(module, self.tiling)
        return apply_casts(module, self.casts)

    def cast(self, module: nn.Module) -> nn.Module:
        """`module`, built in `precision` and possibly filled, as it is at the call; in place."""
        return apply_casts(module, self.casts)

    def part(self, module: nn.Module) -> nn.Module:
        """What is called, of the component `module`: itself, or a block that stands for all."""
        return module if self.block is None else module.get_submodule(self.block.paths[0])

    @property
    def changed(self) -> dict[str, str]:
        """Parameter or buffer -> dtype, where that isn't what the precision alone would give."""
        return self.casts if self.block is None else self.block.dtypes

    @property
    def form(self) -> str:
        """Digest of all that tells this call from another one of the same unit."""
        return form(self.call, self.casts)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(path, tensor on the meta device) of each tensor argument."""
        return ((p, v) for p, v in flatten(self.call) if isinstance(v, torch.Tensor))


def form(call: Mapping[str, Any], casts: Mapping[str, str]) -> str:
    """Digest of a normalised call and the dtypes that the module has at it."""
    leaves = [[path, describe(value)] for path, value in flatten(call)]
    return digest([leaves, dict(casts)])


def describe(value: object) -> Any:
    """A leaf or container marker as JSON; tensors by dtype, shape and strides."""
    if isinstance(value, torch.Tensor):
        return [dtype_name(value.dtype), list(value.shape), list(value.stride())]
    return [type(value).__name__, value if isinstance(value, (dict, *SCALARS)) else None]


def in_order(call: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """`call` in the order of the method's parameters: the order of the package's inputs."""
    return {n: call[n] for n in (*(p for p in names if p in call), *call)}


def check_leaves(call: Mapping[str, Any], unit: str) -> None:
    """Refuse a call with an argument that no manifest can hold.

    Raises:
        BuildError: naming the argument and its type.
    """
    for path, value in flatten(call):
        if not isinstance(value, (torch.Tensor, dict, *SCALARS)):
            raise BuildError(
                f"{unit}: argument {path} is a {type(value).__name__}; a compiled component takes "
                "tensors, numbers, strings, None, and dicts, lists and tuples of these."
            )


def check_answer(answer: object, unit: str) -> None:
    """Refuse an answer that a loader couldn't put together from plain containers.

    Raises:
        BuildError: naming the type.
    """
    if type(answer) in (list, tuple):
        for item in answer:  # type: ignore[attr-defined]
            check_answer(item, unit)
    elif is_output(answer):
        for item in answer.values():  # type: ignore[attr-defined]
            check_answer(item, unit)
    elif not isinstance(answer, torch.Tensor) and type(answer) not in SCALARS:
        raise BuildError(
            f"{unit} answers this pipeline with a {type(answer).__name__}; a package returns "
            "tensors, and lists, tuples and diffusers' outputs of them. Leave the unit out of the "
            "recipe."
        )


def is_output(value: object) -> bool:
    """Whether it is an output object of diffusers', a dict with its fields as attributes."""
    cls = type(value)
    own = cls.__module__.startswith("diffusers.")
    return own and issubclass(cls, dict) and is_dataclass(cls)


def canonical(call: dict[str, Any], rules: Mapping[str, str]) -> dict[str, Any]:
    """`call` with each argument under a rule in its canonical form, as a float32 tensor.

    "timestep/1": a number or a tensor of one element or one per batch entry, of any real dtype,
    becomes (B,), where B is the first extent of the first other tensor. "scalar/1": a number or a
    tensor of rank 0 becomes one of rank 0.

    Raises:
        BuildError: the call has no such argument, or its value isn't of any of these forms.
    """
    changed = dict(call)
    for name, rule in rules.items():
        if name not in call:
            raise BuildError(f"Rule {rule!r} is for {name!r}, but the call has {list(call)}.")
        others = (v for n, v in call.items() if n not in rules and isinstance(v, torch.Tensor))
        batch = next((v.shape[0] for v in others if v.dim()), 1)
        shape, limit = ((), 0) if rule == SCALAR else ((batch,), 1)
        if not _is_real(call[name], ranks=limit, sizes=(1, batch)):
            raise BuildError(
                f"Rule {rule!r} can't bring {name} = {call[name]!r} to float32 of shape {shape}."
            )
        changed[name] = torch.empty(shape, dtype=torch.float32, device="meta")
    return changed


def _is_real(value: object, *, ranks: int, sizes: tuple[int, ...]) -> bool:
    """Whether `value` is a number, or a tensor of them of at most `ranks` and one of `sizes`."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    real = value.dtype is not torch.bool and not value.is_complex()
    return real and value.dim() <= ranks and value.numel() in sizes


def small_values(call: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, list[float]]:
    """Path -> numbers of the small tensors of `call`, in the shapes that they have in `plain`."""
    shapes = {p: v.shape for p, v in flatten(plain) if isinstance(v, torch.Tensor)}
    found: dict[str, list[float]] = {}
    for path, value in flatten(call):
        shape = shapes.get(path)
        if shape is None or shape.numel() > VALUES_LIMIT or getattr(value, "is_meta", False):
            continue
        tensor = torch.as_tensor(value, dtype=torch.float64)
        found[path] = tensor.expand(shape).flatten().tolist()
    return found


def map_tensors(convert: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with each tensor replaced; dicts, lists and tuples are rebuilt, all else is kept."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if type(value) is dict:
        return {k: map_tensors(convert, v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_tensors(convert, v) for v in value)
    return value


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` without values; an expanded or gapped one in the nearest dense layout."""
    return torch.empty_like(tensor, device="meta", requires_grad=False)


def apply_casts(module: nn.Module, casts: Mapping[str, str]) -> nn.Module:
    """Cast the named parameters and buffers of `module` in place."""
    for path, dtype in casts.items():
        owner_path, _, name = path.rpartition(".")
        owner = module.get_submodule(owner_path)
        table: dict[str, Any] = owner._parameters if name in owner._parameters else owner._buffers
        new = table[name].detach().to(getattr(torch, dtype))
        table[name] = nn.Parameter(new, False) if name in owner._parameters else new
    return module


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype without the prefix: "float16"."""
    return str(dtype).removeprefix("torch.")
