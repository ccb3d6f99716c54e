"""Rehearsals of the stock pipelines at a small size: which calls they make of which units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline
from diffusers.models.attention_dispatch import attention_backend

from aotbuild.build.arguments import call_arguments
from aotbuild.build.calls import check_answer
from aotbuild.build.rehearse import Rehearsal, rehearse
from aotbuild.build.signatures import planned_signature
from aotbuild.build.stand_in import Recorder
from aotbuild.cache.signature import flatten
from aotbuild.errors import BuildError, RecipeError
from aotbuild.loaders.state import identify, module_state
from aotbuild.recipe import (
    CallRecipe,
    ComponentRecipe,
    Recipe,
    TensorRecipe,
    VariantRecipe,
    load_configs,
    load_recipe,
)

TINY = load_recipe("tiny")
CONFIGS = load_configs("tiny")


def run(recipe: Recipe = TINY, configs: Any = CONFIGS, **changed: Any) -> Rehearsal:
    arguments = {"resolution": (128, 96), "batch": 1, "variant": "guided"} | changed
    return rehearse(recipe, configs, **arguments)


def image_to_image(dtype: str = "fp32") -> Recipe:
    image = TensorRecipe(shape=("batch", 3, "height", "width"), dtype="float32")
    vae = replace(TINY.components["vae"], methods=("decode", "encode"))
    return replace(
        TINY,
        dtype=dtype,
        pipeline="StableDiffusionXLImg2ImgPipeline",
        components={**TINY.components, "vae": vae},
        call=replace(TINY.call, tensors={**TINY.call.tensors, "image": image}),
    )


def shapes(found: Rehearsal, unit: str) -> dict[str, tuple[int, ...]]:
    (recorded,) = found.units[unit]
    return {path: tuple(tensor.shape) for path, tensor in recorded.tensors()}


def test_rehearse_records_the_denoisers_call_when_guided() -> None:
    assert shapes(run(), "unet") == {
        "sample": (2, 4, 24, 32),
        "timestep": (2,),
        "encoder_hidden_states": (2, 77, 64),
        "added_cond_kwargs.text_embeds": (2, 32),
        "added_cond_kwargs.time_ids": (2, 6),
    }


def test_rehearse_halves_the_batch_when_unguided() -> None:
    found = shapes(run(variant="unguided", batch=3), "unet")
    assert found["sample"] == (3, 4, 24, 32)
    assert found["timestep"] == (3,)


def test_rehearse_records_the_answer_and_the_arguments_that_are_not_tensors() -> None:
    (recorded,) = run().units["vae.decode"]
    assert {p: v for p, v in flatten(recorded.call) if not isinstance(v, torch.Tensor) and p} == {
        "return_dict": False,
        "generator": None,
    }
    assert [tuple(t.shape) for t in recorded.answer] == [(1, 3, 96, 128)]
    assert all(t.is_meta for t in (*dict(recorded.tensors()).values(), *recorded.answer))


def test_rehearse_records_the_class_when_a_method_answers_in_an_output_object() -> None:
    recorder = Recorder("vae", CONFIGS["vae"], "float32", {})
    decode: Any = recorder.module.decode
    assert decode(torch.ones(1, 4, 8, 8)).sample.shape == (1, 3, 32, 32)
    (recorded,) = recorder.calls["vae.decode"]
    check_answer(recorded.answer, "vae.decode")
    signature = planned_signature(recorded, "cpu", None)
    name = "diffusers.models.autoencoders.vae.DecoderOutput"
    assert signature.returns == (("", {"object": [name, "sample"]}),)
    assert [s.path for s in signature.outputs] == ["sample"]


def test_rehearse_refuses_an_output_object_that_holds_more_than_tensors() -> None:
    recorder = Recorder("vae", CONFIGS["vae"], "float32", {})
    encode: Any = type(recorder.module).encode
    found = encode(recorder.module, torch.ones(1, 3, 32, 32))
    with pytest.raises(BuildError, match="answers this pipeline with a DiagonalGaussian"):
        check_answer(found, "vae.encode")


def test_rehearse_brings_the_timestep_to_its_canonical_form() -> None:
    (recorded,) = run().units["unet"]
    assert recorded.rules == {"timestep": "timestep/1"}
    assert recorded.call["timestep"].dtype is torch.float32


def test_rehearse_identifies_the_stock_module_as_the_loader_will() -> None:
    for recorded in (c for calls in run().units.values() for c in calls):
        stock = recorded.module()
        assert recorded.identity == identify(stock)
        assert recorded.state == module_state(stock)


def test_rehearse_sees_the_upcast_when_the_vae_is_fp16() -> None:
    found = run(replace(TINY, dtype="fp16"))
    (decode,) = found.units["vae.decode"]
    assert (decode.precision, decode.dtype) == ("float16", "float32")
    assert decode.call["z"].dtype is torch.float32
    assert {p.dtype for p in decode.module().parameters()} == {torch.float32}
    (unet,) = found.units["unet"]
    assert (unet.dtype, unet.casts) == ("float16", {})


def test_rehearse_records_plain_moments_when_the_pipeline_encodes() -> None:
    found = run(image_to_image())
    (encode,) = found.units["vae.encode"]
    assert encode.method == "_encode"
    assert tuple(encode.call["x"].shape) == (1, 3, 96, 128)
    assert tuple(encode.answer.shape) == (1, 8, 24, 32)


def test_rehearse_runs_the_variants_own_pipeline_over_the_same_components() -> None:
    image = image_to_image()
    variant = VariantRecipe(pipeline=image.pipeline, tensors={"image": image.call.tensors["image"]})
    recipe = replace(
        image,
        pipeline=TINY.pipeline,
        call=replace(TINY.call, variants={**TINY.call.variants, "image": variant}),
    )
    found = run(recipe, variant="image")
    assert {"unet", "vae.decode", "vae.encode"} == set(found.units)
    plain = run(recipe)
    assert {"unet", "vae.decode"} == set(plain.units)
    assert plain.units["unet"][0].form == found.units["unet"][0].form


def test_rehearse_passes_a_list_when_the_recipe_counts_tensors() -> None:
    counted = TensorRecipe(shape=("batch", 3, "height/2"), count=2)
    recipe = replace(TINY.vary("guided"), call=replace(TINY.call, tensors={"timesteps": counted}))
    given = call_arguments(recipe, StableDiffusionXLPipeline, (128, 96), 2)
    assert [tuple(t.shape) for t in given["timesteps"]] == [(2, 3, 48)] * 2


def test_rehearse_sets_aside_what_the_recipe_does_not_name() -> None:
    found = run(replace(TINY, components={"unet": TINY.components["unet"]}))
    assert (set(found.units), set(found.others)) == ({"unet"}, {"vae.decode"})


def test_rehearse_records_each_signature_once_when_there_are_several() -> None:
    recorder = Recorder("vae", CONFIGS["vae"], "float32", {})
    decode: Any = recorder.module.decode
    for size in (8, 8, 16):
        assert decode(torch.ones(1, 4, size, size), return_dict=False)[0].shape[2] == 4 * size
    assert [c.call["z"].shape[2] for c in recorder.calls["vae.decode"]] == [8, 16]


def test_stand_in_stays_the_real_class_on_the_cpu_when_moved_and_cast() -> None:
    import diffusers

    module: Any = Recorder("vae", CONFIGS["vae"], "float16", {}).module
    assert isinstance(module, diffusers.AutoencoderKL)
    assert module.to("cpu").device == torch.device("cpu")
    assert (module.dtype, module.to(dtype=torch.float32).dtype) == (torch.float16, torch.float32)


def test_stand_in_reports_the_state_at_the_call_when_the_pipeline_switches_tiling_on() -> None:
    recorder = Recorder("vae", CONFIGS["vae"], "float32", {})
    module: Any = recorder.module
    module.enable_tiling()
    module.decode(torch.ones(1, 4, 8, 8), return_dict=False)
    (recorded,) = recorder.calls["vae.decode"]
    assert recorded.state["switches"]["use_tiling"] is True


def test_rehearse_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    run()
    assert torch.equal(before, torch.get_rng_state())


def test_rehearse_passes_no_text_beside_its_embeddings_when_the_default_is_empty() -> None:
    transformer = {
        "_class_name": "PixArtTransformer2DModel",
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 1,
        "sample_size": 16,
        "cross_attention_dim": 16,
        "caption_channels": 8,
        "in_channels": 4,
        "out_channels": 8,
        "norm_num_groups": 4,
    }
    embeds = TensorRecipe(shape=("batch", 7, 8))
    mask = TensorRecipe(shape=("batch", 7), dtype="int64", fill=1)
    recipe = Recipe(
        format=1,
        name="pixart",
        title="",
        pipeline="PixArtAlphaPipeline",
        architecture="tiny",
        dtype="bf16",
        components={"transformer": ComponentRecipe(methods=("forward",))},
        call=CallRecipe(
            resolution="128x128",
            multiple_px=16,
            arguments={"use_resolution_binning": False},
            tensors={
                "prompt_embeds": embeds,
                "negative_prompt_embeds": embeds,
                "prompt_attention_mask": mask,
                "negative_prompt_attention_mask": mask,
            },
        ),
    )
    configs = {
        "transformer": transformer,
        "vae": CONFIGS["vae"],
        "scheduler": {"_class_name": "DPMSolverMultistepScheduler"},
    }
    found = run(recipe, configs, resolution=(128, 128), variant="default")
    assert shapes(found, "transformer")["hidden_states"] == (2, 4, 32, 32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pipeline": "StableDiffusionXLPipelin"}, "nearest is StableDiffusionXLPipeline"),
        ({"components": {"unett": TINY.components["unet"]}}, "'unett' has no config"),
        ({"call": replace(TINY.call, arguments={"guidance": 5.0})}, "guidance_scale"),
        ({"components": {"vae": image_to_image().components["vae"]}}, "calls no such unit"),
    ],
)
def test_rehearse_refuses_when_the_recipe_does_not_fit(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        run(replace(TINY, **changed))


def test_rehearse_refuses_when_the_resolution_is_off_the_grid() -> None:
    with pytest.raises(RecipeError, match="the nearest is 96x96"):
        run(resolution=(100, 96))


def test_rehearse_refuses_when_the_variant_is_unknown() -> None:
    with pytest.raises(RecipeError, match="it has guided, unguided"):
        run(variant="gided")


def test_rehearse_repeats_the_pipelines_words_when_it_refuses_the_call() -> None:
    tensors = {n: t for n, t in TINY.call.tensors.items() if n != "pooled_prompt_embeds"}
    recipe = replace(TINY, call=replace(TINY.call, tensors=tensors))
    with pytest.raises(
        BuildError, match=r"refused the rehearsal's call.*pooled_prompt_embeds"
    ) as e:
        run(recipe)
    assert ".." not in str(e.value)


def test_rehearse_leaves_the_tiles_to_the_vae_when_the_recipe_says_so() -> None:
    tiling = replace(TINY.components["vae"], tiling=True)
    recipe = replace(TINY, components={**TINY.components, "vae": tiling})
    (plain,), (tiled,) = (run(r).units["vae.decode"] for r in (TINY, recipe))
    assert not plain.module().use_tiling
    assert tiled.module().use_tiling
    assert tiled.state["switches"]["use_tiling"] is True
    with pytest.raises(RecipeError, match="has no tiles"):
        run(replace(TINY, components={"unet": replace(TINY.components["unet"], tiling=True)}))


def test_rehearse_records_the_stock_attention_when_the_process_has_named_another() -> None:
    configs = load_configs("flux1-schnell")
    configs["transformer"] |= {"num_layers": 1, "num_single_layers": 1}
    with attention_backend("_native_math"):
        found = run(load_recipe("flux1-schnell"), configs, variant="default")
    (recorded,) = found.units["transformer"]
    assert "attention" not in recorded.state
