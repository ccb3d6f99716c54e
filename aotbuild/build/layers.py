"""What a recipe's int8 filter makes of one unit: its layers, and how it is prepared after all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from aotbuild.build.prepare import prepare
from aotbuild.build.quantize import INDUCTOR, Layer, effective, survey
from aotbuild.recipe import ComponentRecipe, Scalar


def judge_layers(
    make_module: Callable[[], nn.Module], component: ComponentRecipe
) -> tuple[ComponentRecipe, tuple[Layer, ...]]:
    """`component` as it will be prepared, and every linear layer with what the filter says of it.

    A component of which the filter admits nothing is prepared unquantized. Where nothing is to be
    quantized there are no layers, and no module is made.
    """
    if component.quantization == "none":
        return component, ()
    module = make_module()
    prepare(module, replace(component, quantization="none"))
    layers = survey(module, component)
    return effective(component, layers), layers


def inductor_options(component: ComponentRecipe) -> dict[str, Scalar]:
    """The component's options for Inductor, and those that int8 goes with."""
    if component.quantization == "none":
        return component.inductor
    known = torch._inductor.config.get_config_copy()
    return {**{n: v for n, v in INDUCTOR.items() if n in known}, **component.inductor}
