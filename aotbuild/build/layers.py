"""What a recipe's int8 filter makes of one unit: its layers, and how it is prepared after all."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from aotbuild.build.calls import Block, RecordedCall
from aotbuild.build.modules import quiet
from aotbuild.build.prepare import prepare
from aotbuild.build.quantize import INDUCTOR, Layer, effective, survey
from aotbuild.errors import RecipeError
from aotbuild.recipe import ComponentRecipe, Scalar


def judge_layers(
    recorded: RecordedCall, component: ComponentRecipe
) -> tuple[ComponentRecipe, tuple[Layer, ...]]:
    """`component` as it will be prepared, and each linear layer with what the filter says of it.

    A unit of which the filter admits nothing is prepared unquantized. Where nothing is to be
    quantized there are no layers, and no module is made. Of a block, its own layers count.

    Raises:
        RecipeError: of blocks that are alike the filter admits other layers.
    """
    if component.quantization == "none":
        return component, ()
    module = recorded.module()
    prepare(module, replace(component, quantization="none"))
    layers = survey(module, component)
    if recorded.block is not None:
        layers = _of_blocks(layers, recorded.unit, recorded.block)
    elif recorded.method != "forward":
        called = _called(module, recorded)
        layers = tuple(layer for layer in layers if layer.path in called)
    return effective(component, layers), layers


def _of_blocks(layers: tuple[Layer, ...], unit: str, block: Block) -> tuple[Layer, ...]:
    """Those of `layers` that are in the block, by their paths in it."""
    found = {path: _within(layers, path) for path in block.paths}
    first, *others = block.paths
    for path in others:
        for ours, theirs in zip(found[first], found[path], strict=True):
            if (ours.reason is None) != (theirs.reason is None):
                raise RecipeError(
                    f"{unit}: the filter int8 quantizes {ours.path} in one of {first} and {path}, "
                    "and not in the other, but one artifact serves both. Write patterns that hold "
                    "for all blocks alike, or leave --scope regional out."
                )
    return found[first]


def _within(layers: tuple[Layer, ...], path: str) -> tuple[Layer, ...]:
    prefix = f"{path}." if path else ""
    inside = (layer for layer in layers if layer.path.startswith(prefix))
    return tuple(replace(layer, path=layer.path.removeprefix(prefix)) for layer in inside)


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
