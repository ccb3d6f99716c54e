"""A stock pipeline with seeded random weights, and inputs for it; compiles and swaps nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from aotbuild.bench.tokenizer import make_tokenizer
from aotbuild.build.modules import build_module, fill_random
from aotbuild.recipe import Recipe, parse_resolution, recipe_configs

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
    import diffusers

    dtype = dtype or recipe.torch_dtype
    configs = recipe_configs(recipe)
    cls = getattr(diffusers, recipe.pipeline)
    parts: dict[str, Any] = {
        name: _component(name, configs, seed=seed, dtype=dtype)
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
    dtype: str | None = None,
    variant: str | None = None,
    steps: int = 4,
    prompt: str | None = None,
) -> dict[str, Any]:
    """Arguments of one call of `random_pipeline`'s pipeline, the same for the same seed.

    Args:
        recipe: whose default call it is.
        seed: of the latents, and of the prompt embeddings where there is no `prompt`.
        dtype: of the prompt embeddings, (B, 77, C); the recipe's where None.
        variant: one of the recipe's call variants.
        steps: denoising steps.
        prompt: text, for a pipeline with text encoders; instead of prompt embeddings.
    """
    dtype = dtype or recipe.torch_dtype
    recipe = recipe.vary(variant) if variant else recipe
    width, height = parse_resolution(recipe.call.resolution)
    sizes = {"batch": recipe.call.batch, "height": height, "width": width}
    generator = torch.Generator().manual_seed(seed)
    call: dict[str, Any] = {
        **recipe.call.arguments,
        "width": width,
        "height": height,
        "num_inference_steps": steps,
    }
    if prompt is not None:
        call |= {"prompt": prompt, "num_images_per_prompt": recipe.call.batch}
    else:
        for name, tensor in recipe.call.tensors.items():
            kind = getattr(torch, dtype if tensor.dtype == "float" else tensor.dtype)
            call[name] = torch.randn(tensor.extents(sizes), generator=generator).to(kind)
    return {**call, "generator": generator.manual_seed(seed)}


def _component(name: str, configs: Mapping[str, Any], *, seed: int, dtype: str) -> Any:
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
        import diffusers

        return getattr(diffusers, config["_class_name"]).from_config(config)
    module = build_module(config, dtype)
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
