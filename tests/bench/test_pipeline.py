"""The stock pipeline with random weights: real classes, one seed one picture, no black one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from aotbuild.bench.pipeline import PROMPT, pipeline_inputs, random_pipeline
from aotbuild.bench.tokenizer import END, START, make_tokenizer, vocabulary
from aotbuild.recipe import load_recipe

RECIPE = load_recipe("tiny")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return random_pipeline(RECIPE)


def pixels(pipeline: Any, **changes: Any) -> Any:
    inputs = pipeline_inputs(RECIPE, prompt=PROMPT, steps=2)
    return np.asarray(pipeline(**{**inputs, **changes}).images[0], dtype=np.int16)


def test_prompt_becomes_a_picture_when_called_as_stock(pipeline: Any) -> None:
    image = np.asarray(pipeline(PROMPT, num_inference_steps=2).images[0])
    assert image.shape == (128, 128, 3)
    assert image.std() > 20
    assert len(np.unique(image)) > 100


def test_picture_is_the_same_when_the_seed_is(pipeline: Any) -> None:
    assert np.array_equal(pixels(pipeline), pixels(random_pipeline(RECIPE)))


def test_picture_is_another_when_seed_or_prompt_differ(pipeline: Any) -> None:
    assert not np.array_equal(pixels(pipeline), pixels(random_pipeline(RECIPE, seed=1)))
    assert not np.array_equal(pixels(pipeline), pixels(pipeline, prompt="a teapot"))


def test_denoiser_batch_is_one_when_guidance_is_off(pipeline: Any) -> None:
    batches: list[int] = []
    hook = pipeline.unet.register_forward_pre_hook(lambda _, args: batches.append(len(args[0])))
    pipeline(**pipeline_inputs(RECIPE, prompt=PROMPT, steps=1, variant="guided"))
    pipeline(**pipeline_inputs(RECIPE, prompt=PROMPT, steps=1, variant="unguided"))
    hook.remove()
    assert batches == [2, 1]


def test_decoder_is_upcast_when_the_pipeline_is_half_precision() -> None:
    half = random_pipeline(RECIPE, dtype="float16")
    assert half.vae.config.force_upcast
    assert {p.dtype for p in half.unet.parameters()} == {torch.float16}


def test_embeddings_stand_in_when_there_is_no_text_encoder() -> None:
    inputs = pipeline_inputs(load_recipe("sd15").override(dtype="fp32"))
    assert inputs["prompt_embeds"].shape == (1, 77, 768)
    assert "prompt" not in inputs


def test_inputs_are_an_image_and_no_size_when_the_pipeline_starts_from_one() -> None:
    recipe = load_recipe("sd15").override(dtype="fp32", resolution="64x64")
    inputs = pipeline_inputs(recipe, variant="image-to-image", steps=2)
    assert not {"width", "height"} & set(inputs)
    assert inputs["num_inference_steps"] == 3  # of which a strength of 0.8 leaves two
    image = inputs["image"]
    assert 0 <= image.min() < image.mean() < image.max() <= 1


def test_tokens_are_the_recipes_own_when_they_stand_in_for_a_prompt() -> None:
    inputs = pipeline_inputs(load_recipe("pixart-alpha"))
    mask = inputs["prompt_attention_mask"]
    assert mask.dtype == torch.int64
    assert mask.all()
    assert inputs["negative_prompt"] is None


def test_ip_adapter_has_weights_when_the_recipe_names_one() -> None:
    unet = replace(RECIPE.components["unet"], fuse_qkv=False, ip_adapters=(16,))
    module = random_pipeline(replace(RECIPE, components={"unet": unet})).unet
    assert module.encoder_hid_proj is not None
    assert not any(p.is_meta for p in module.parameters())


def test_tokenizer_gives_a_token_a_byte_when_there_are_no_merges() -> None:
    tokenizer = make_tokenizer()
    tokens = tokenizer("ab é")["input_ids"]
    known = vocabulary()
    assert tokens[0] == known[START]
    assert tokens[-1] == known[END]
    assert tokens[1:3] == [known["a"], known["b</w>"]]
    assert len(tokens) == 2 + len("ab") + len("é".encode())
