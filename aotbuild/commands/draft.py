"""A recipe drafted from the configs of a checkpoint; reads no weights and writes no file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aotbuild.errors import RecipeError
from aotbuild.recipe import (
    FORMAT,
    CallRecipe,
    ComponentRecipe,
    LengthRecipe,
    Recipe,
    Scalar,
    TensorRecipe,
    VariantRecipe,
)

Configs = Mapping[str, Mapping[str, Any]]

DENOISERS = ("unet", "transformer")
TEXT_WIDTHS = (
    "encoder_hid_dim",
    "joint_attention_dim",
    "caption_channels",
    "text_embed_dim",
    "text_dim",
    "cross_attention_dim",
)
"""Where configs of denoisers say how wide a prompt embedding is; the first that is there counts."""

PREPARATIONS = {"QwenImageTransformer2DModel": ("real_rotary",)}
"""Class of a denoiser -> the preparations without which it can't be packaged."""

INDUCTOR: dict[str, Scalar] = {"conv_1x1_as_mm": True, "epilogue_fusion": False}
TOKENS = 77


def draft_recipe(configs: Configs, *, source: str, architecture: str, hub: bool) -> Recipe:
    """A recipe for a checkpoint, right for the Stable Diffusion families, a beginning for others.

    Args:
        configs: by component, as `load_configs` gives them.
        source: the folder or repository, which the recipe is named after.
        architecture: where a build will find the configs.
        hub: whether `source` is a repository, to record as the checkpoint.

    Raises:
        RecipeError: no pipeline index, no denoiser among the configs, or one that isn't as
            diffusers writes it.
    """
    pipeline = configs.get("model_index", {}).get("_class_name")
    if not isinstance(pipeline, str):
        raise RecipeError(
            f"{source} holds no model_index.json that names a class: it isn't a diffusers pipeline."
        )
    denoiser = next((name for name in DENOISERS if name in configs), None)
    if denoiser is None:
        raise RecipeError(
            f"{source} has neither {' nor '.join(DENOISERS)} among its configs, but "
            f"{', '.join(sorted(configs))}. Write the recipe by hand; docs/recipes.md explains it."
        )
    name = re.sub(r"[^a-z0-9.-]+", "-", source.rstrip("/").split("/")[-1].lower()).strip("-.")
    try:
        components, call = _components(denoiser, configs), _call(denoiser, configs)
    except (TypeError, ValueError, KeyError) as e:
        raise RecipeError(
            f"The configs of {source} aren't what diffusers writes ({type(e).__name__}: {e}). "
            "Write the recipe by hand; docs/recipes.md explains it."
        ) from e
    return Recipe(
        format=FORMAT,
        name=name or "model",
        title=source,
        checkpoint=source if hub else None,
        pipeline=pipeline,
        architecture=architecture,
        dtype="bf16",
        components=components,
        call=call,
    )


def explain_draft(recipe: Recipe) -> dict[str, str]:
    """By table of its TOML: what the table is for, and what is a guess."""
    comments = {
        "": "Drafted by `aotbuild recipes new`; docs/recipes.md explains every field.\n"
        "`dtype` must be the precision in which your service loads the pipeline.",
        "call": "The call to build for: the size of the images in pixels, and how many at once.",
        "call.tensors": "What stands in for the text encoders.",
        "call.lengths": f"That prompts have {TOKENS} tokens is a guess.",
        "call.variants": "Calls that differ, an artifact each where shapes do:\n"
        "unguided = { arguments = { guidance_scale = 1.0 } }",
    }
    for name in recipe.components:
        what = "The denoiser" if name in DENOISERS else "The decoder of images"
        comments |= {
            f"components.{name}": f"{what}: what is compiled, and how it is prepared.",
            f"components.{name}.inductor": "Options of the compiler, torch._inductor.config.",
        }
    return comments


def _components(denoiser: str, configs: Configs) -> dict[str, ComponentRecipe]:
    convolutional = denoiser == "unet"
    layout = "channels_last" if convolutional else "contiguous"
    components = {
        denoiser: ComponentRecipe(
            methods=("forward",),
            memory_format=layout,
            fuse_qkv=convolutional,
            preparations=PREPARATIONS.get(configs[denoiser].get("_class_name", ""), ()),
            rules={"timestep": "timestep/1"} if convolutional else {},
            inductor=INDUCTOR,
        )
    }
    if configs.get("vae", {}).get("_class_name") == "AutoencoderKL":
        components["vae"] = ComponentRecipe(
            methods=("decode",), memory_format="channels_last", fuse_qkv=True, inductor=INDUCTOR
        )
    return components


def _call(denoiser: str, configs: Configs) -> CallRecipe:
    config, vae = configs[denoiser], configs.get("vae", {})
    latent_px = 2 ** (len(vae.get("block_out_channels") or [0]) - 1)
    levels = len(config.get("block_out_channels") or [0, 0])
    multiple_px = latent_px * (2 ** (levels - 1) if denoiser == "unet" else 2)
    size = config.get("sample_size")
    side = size * latent_px if isinstance(size, int) else int(vae.get("sample_size") or 1024)
    side = max(1, side // multiple_px) * multiple_px
    tensors = _tensors(config)
    return CallRecipe(
        resolution=f"{side}x{side}",
        multiple_px=multiple_px,
        tensors=tensors,
        lengths={"tokens": LengthRecipe(usual=TOKENS)} if tensors else {},
        variants={"default": VariantRecipe()},
    )


def _tensors(config: Mapping[str, Any]) -> dict[str, TensorRecipe]:
    width = next((w for n in TEXT_WIDTHS if isinstance(w := config.get(n), int)), None)
    if width is None:
        return {}
    embeddings = TensorRecipe(shape=("batch", "tokens", width))
    tensors = {"prompt_embeds": embeddings, "negative_prompt_embeds": embeddings}
    pooled = config.get("pooled_projection_dim")
    if config.get("addition_embed_type") == "text_time":
        # Six time ids share the added embedding with the pooled text.
        total = config["projection_class_embeddings_input_dim"]
        pooled = total - 6 * config["addition_time_embed_dim"]
    if isinstance(pooled, int):
        vector = TensorRecipe(shape=("batch", pooled))
        tensors |= {"pooled_prompt_embeds": vector, "negative_pooled_prompt_embeds": vector}
    return tensors
