"""A stock pipeline with seeded random weights, and inputs for it; compiles and swaps nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from aotbuild.bench.tokenizer import make_tokenizer
from aotbuild.build.arguments import Values, call_arguments, filled
from aotbuild.build.ip_adapter import add_ip_adapters
from aotbuild.build.modules import build_module, diffusers_class, fill_random, use_tiling
from aotbuild.recipe import Recipe, TensorRecipe, parse_resolution, recipe_configs

PROMPT = "an astronaut in a jungle"


def random_pipeline(recipe: Recipe, *, seed: int = 0, dtype: str | None = None) -> Any:
    """The recipe's own pipeline class, every component real, weights random but for ever the same.

    Text encoders and tokenizers are made where the architecture has configs for them; elsewhere
    they are None and `pipeline_inputs` stands in for them.

    Args:
        recipe: whose pipeline class and architecture to use.
        seed: of the weights.
        dtype: of the weights, as torch names it, "float16"; the recipe's where None.
    """
    dtype = dtype or recipe.torch_dtype
    configs = recipe_configs(recipe)
    cls = diffusers_class(recipe.pipeline)
    parts: dict[str, Any] = {
        name: _component(name, recipe, configs, seed=seed, dtype=dtype)
        for name in inspect.signature(cls.__init__).parameters
        if name in cls._get_signature_keys(cls)[0]
    }
    parts |= _options(cls, configs.get("model_index", {}))
    pipeline = cls(**parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def pipeline_inputs(
    recipe: Recipe,
    *,
    seed: int = 0,
    variant: str | None = None,
    steps: int = 4,
    prompt: str | None = None,
) -> dict[str, Any]:
    """Arguments of one call of `random_pipeline`'s pipeline, the same for the same seed.

    Args:
        recipe: whose default call it is.
        seed: of the latents, of images, and of the prompt embeddings where there is no `prompt`.
        variant: one of the recipe's call variants.
        steps: how often the denoiser is to be called.
        prompt: text, for a pipeline with text encoders; instead of prompt embeddings.
    """
    recipe = recipe.vary(variant) if variant else recipe
    call = recipe.call
    if prompt is not None:
        tensors = {n: t for n, t in call.tensors.items() if "prompt" not in n}
        recipe = replace(recipe, call=replace(call, tensors=tensors))
    generator = torch.Generator().manual_seed(seed)
    given = call_arguments(
        recipe,
        diffusers_class(recipe.pipeline),
        parse_resolution(call.resolution),
        call.batch,
        steps=steps,
        values=_drawn(generator),
    )
    given.pop("output_type", None)
    if prompt is not None:
        given |= {"prompt": prompt, "num_images_per_prompt": call.batch}
    return {**given, "generator": generator.manual_seed(seed)}


def _drawn(generator: torch.Generator) -> Values:
    """Normal embeddings; pixels of images and masks in 0..1; of tokens and the like, the `fill`."""

    def draw(
        name: str, tensor: TensorRecipe, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        if not dtype.is_floating_point:
            return filled(name, tensor, shape, dtype)
        sample = torch.randn if "embeds" in name else torch.rand
        return sample(shape, generator=generator).to(dtype)

    return draw


def _component(
    name: str, recipe: Recipe, configs: Mapping[str, Any], *, seed: int, dtype: str
) -> Any:
    """The pipeline's component of that name, or None where the architecture holds no config."""
    if name.startswith("tokenizer"):
        encoder = configs.get(name.replace("tokenizer", "text_encoder"))
        return make_tokenizer(encoder["max_position_embeddings"]) if encoder else None
    config = configs.get(name)
    if config is None:
        return None
    if name.startswith("text_encoder"):
        return _text_encoder(config, seed=seed, dtype=dtype)
    if "scheduler" in name:
        return diffusers_class(config["_class_name"]).from_config(config)
    module = build_module(config, dtype)
    if name in recipe.components:
        add_ip_adapters(module, recipe.components[name].ip_adapters, dtype)
        use_tiling(module, recipe.components[name].tiling)
    fill_random(module, seed)
    return module


def _text_encoder(config: Mapping[str, Any], *, seed: int, dtype: str) -> torch.nn.Module:
    import transformers

    name = config["architectures"][0]
    settings = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = getattr(transformers, name)(transformers.CLIPTextConfig(**settings))
    module: torch.nn.Module = encoder.to(getattr(torch, dtype)).eval()
    return module


def _options(cls: type, model_index: Mapping[str, Any]) -> dict[str, Any]:
    """The plain constructor arguments that the checkpoint's index sets; no safety checker."""
    known = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    options = {
        name: value
        for name, value in model_index.items()
        if name in known and value is not None and not isinstance(value, list)
    }
    if "requires_safety_checker" in known:
        options["requires_safety_checker"] = False
    return options
