"""int8: which layers of a module are quantized, and doing it on a module without weights.

Follows a recipe's filter. The loader makes the same int8 data from real weights (`loaders.rules`).

Private names of torch and torchao, tried on torch 2.11.0, 2.13.0 and 2.14.1 with torchao 0.18.0:

- `unwrap_tensor_subclass_parameters`: int8 data and scale as parameters of their own, which export
  and the constant plan can name,
  https://github.com/pytorch/pytorch/blob/main/torch/_functorch/_aot_autograd/subclass_parametrization.py
- `torchao.kernel.intmm._cpu_is_...`: what this CPU has, where the target's counts,
  https://github.com/pytorch/ao/blob/main/torchao/kernel/intmm.py
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from aotbuild.build.fuse import FUSED
from aotbuild.recipe import ComponentRecipe, Int8Filter

PARAMETRIZED = ".parametrizations.weight.original"
"""Between a quantized layer's path and 0 for its int8 data, 1 for its scale."""

INDUCTOR = {"force_fuse_int_mm_with_mul": True, "use_mixed_mm": True}
"""Inductor's options for int8; those that a torch doesn't have are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A linear layer of the prepared module, and what the filter says of it.

    Attributes:
        path: in the prepared module. in_features, out_features: its widths.
        reason: why it isn't quantized; None where it is.
    """

    path: str
    in_features: int
    out_features: int
    reason: str | None

    def to_json(self) -> dict[str, object]:
        """A JSON object with every field."""
        return {
            "path": self.path,
            "in_features": self.in_features,
            "out_features": self.out_features,
            "reason": self.reason,
        }


class PointwiseLinear(nn.Linear):
    """A 1x1 convolution over [batch, channels, height, width] as a matrix product."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The convolution's own answer, up to rounding."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


def survey(module: nn.Module, component: ComponentRecipe) -> tuple[Layer, ...]:
    """Every linear layer of `module`, prepared but for quantization, as the filter judges it.

    1x1 convolutions that the filter makes linear count as such. Projections that were joined into a
    fused one are left out: nothing calls them any more.
    """
    if component.quantization != "int8dq" or component.int8 is None:
        return ()
    stale = _stale_projections(module)
    return tuple(
        _judged(path, *_widths(child), component.int8)
        for path, child in module.named_modules()
        if path not in stale and (isinstance(child, nn.Linear) or _pointwise(child, component.int8))
    )


def effective(component: ComponentRecipe, layers: tuple[Layer, ...]) -> ComponentRecipe:
    """`component`, unquantized where the filter admits none of `layers`."""
    if component.quantization == "none" or any(layer.reason is None for layer in layers):
        return component
    return replace(component, quantization="none", int8=None)


def quantize(module: nn.Module, component: ComponentRecipe, *, for_export: bool = True) -> None:
    """Quantize the layers of `module` that the filter admits, in place; sets no Inductor option.

    Args:
        for_export: each ends as a layer whose int8 data and scale are parameters, which export and
            the constant plan can name; else its weight is torchao's, which torch.compile can trace.
    """
    layers = survey(module, component)
    admitted = {layer.path for layer in layers if layer.reason is None}
    if not admitted or component.int8 is None:
        return
    _swap_pointwise(module, component.int8)
    quantize_layers(module, admitted)
    if not for_export:
        return
    from torch._functorch._aot_autograd.subclass_parametrization import (
        unwrap_tensor_subclass_parameters,
    )

    unwrap_tensor_subclass_parameters(module)


def quantize_layers(module: nn.Module, paths: set[str]) -> None:
    """Give the linear layers at `paths` torchao's int8 weights, in place, on any device."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    config = Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)
    quantize_(module, config, filter_fn=lambda _, path: path in paths)


@contextlib.contextmanager
def portable_products() -> Iterator[None]:
    """Have torchao trace the same int8 product on every CPU: signed times signed.

    Asked itself, it looks at the CPU it runs on, which isn't the one that is built for.
    """
    import torchao.kernel.intmm as intmm

    names = ("_cpu_is_vnni_supported", "_cpu_is_amx_tile_supported")
    before = {name: getattr(intmm, name) for name in names if hasattr(intmm, name)}
    for name in before:
        setattr(intmm, name, lambda: False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(intmm, name, value)


def _judged(path: str, in_features: int, out_features: int, rule: Int8Filter) -> Layer:
    pattern = next((p for p in rule.skip_layers if fnmatch.fnmatchcase(path, p)), None)
    reason = None
    if in_features < rule.min_in_features:
        reason = f"fewer than {rule.min_in_features} input features"
    elif (in_features, out_features) in rule.skip_shapes:
        reason = f"skip_shapes holds ({in_features}, {out_features})"
    elif pattern is not None:
        reason = f"skip_layers holds {pattern!r}"
    return Layer(path=path, in_features=in_features, out_features=out_features, reason=reason)


def _widths(child: nn.Module) -> tuple[int, int]:
    if isinstance(child, nn.Conv2d):
        return child.in_channels, child.out_channels
    assert isinstance(child, nn.Linear)
    return child.in_features, child.out_features


def _pointwise(child: nn.Module, rule: Int8Filter) -> bool:
    """Whether `child` is a 1x1 convolution that the filter makes a linear layer."""
    return (
        isinstance(child, nn.Conv2d)
        and child.kernel_size == (1, 1)
        and child.stride == (1, 1)
        and child.padding in ((0, 0), "valid")
        and child.groups == 1
        and bool({child.in_channels, child.out_channels} & set(rule.pointwise_channels))
    )


def _swap_pointwise(module: nn.Module, rule: Int8Filter) -> None:
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if not _pointwise(child, rule):
                continue
            assert isinstance(child, nn.Conv2d)
            with torch.device("meta"):
                linear = PointwiseLinear(child.in_channels, child.out_channels)
            linear.weight = nn.Parameter(child.weight.detach().flatten(1), requires_grad=False)
            linear.bias = child.bias  # type: ignore[assignment]
            setattr(parent, name, linear.train(child.training))


def _stale_projections(module: nn.Module) -> set[str]:
    stale = set()
    for path, owner in module.named_modules():
        for fused, parts in FUSED.items():
            if fused in owner._modules:
                stale |= {f"{path}.{part}" if path else part for part in parts}
    return stale
