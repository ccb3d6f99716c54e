"""What a recipe's int8 filter makes of one unit: its layers, and how it is prepared after all."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from aotbuild.build.calls import RecordedCall
from aotbuild.build.modules import quiet
from aotbuild.build.prepare import prepare
from aotbuild.build.quantize import INDUCTOR, Layer, effective, survey
from aotbuild.recipe import ComponentRecipe, Scalar


def judge_layers(
    recorded: RecordedCall, component: ComponentRecipe
) -> tuple[ComponentRecipe, tuple[Layer, ...]]:
    """`component` as it will be prepared, and each linear layer with what the filter says of it.

    A unit of which the filter admits nothing is prepared unquantized. Where nothing is to be
    quantized there are no layers, and no module is made.
    """
    if component.quantization == "none":
        return component, ()
    module = recorded.module()
    prepare(module, replace(component, quantization="none"))
    layers = survey(module, component)
    if recorded.method != "forward":
        called = _called(module, recorded)
        layers = tuple(layer for layer in layers if layer.path in called)
    return effective(component, layers), layers


def _called(module: nn.Module, recorded: RecordedCall) -> set[str]:
    """Paths of the submodules that the recorded method calls: a decoder's, not an encoder's."""
    called: set[str] = set()
    for path, child in module.to("meta").named_modules():
        child.register_forward_pre_hook(lambda *_, path=path: called.add(path))
    with torch.no_grad(), quiet():
        getattr(module, recorded.method)(**recorded.call)
    return called


def inductor_options(component: ComponentRecipe) -> dict[str, Scalar]:
    """The component's options for Inductor, and those that int8 goes with."""
    if component.quantization == "none":
        return component.inductor
    known = torch._inductor.config.get_config_copy()
    return {**{n: v for n, v in INDUCTOR.items() if n in known}, **component.inductor}
