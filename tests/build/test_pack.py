"""Constants out of a real checkpoint, as the pipeline would load and cast it."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from aotbuild.build.calls import RecordedCall
from aotbuild.build.modules import build_module, fill_random
from aotbuild.build.pack import Source, pack, parameters_of, source_of
from aotbuild.build.plan import plan
from aotbuild.build.rehearse import rehearse
from aotbuild.build.request import BuildRequest
from aotbuild.cache.files import Parameter
from aotbuild.cache.manifest import Constant
from aotbuild.errors import BuildError, UsageError
from aotbuild.loaders.rules import int8_rows
from aotbuild.recipe import load_configs, load_recipe

TINY = load_recipe("tiny")
FILE = "diffusion_pytorch_model.safetensors"
LAYER = "mid_block.attentions.0.transformer_blocks.0.attn1"


@pytest.fixture(scope="module")
def recorded() -> RecordedCall:
    configs = load_configs(TINY.architecture)
    variant = next(iter(TINY.call.variants))
    found = rehearse(TINY, configs, resolution=(64, 64), batch=1, variant=variant)
    return found.units["unet"][0]


@pytest.fixture
def checkpoint(recorded: RecordedCall, tmp_path: Path) -> Path:
    """Folder of a pipeline with random weights of the UNet, in float32."""
    module = build_module(recorded.config, "float32")
    fill_random(module, 3)
    module.save_pretrained(tmp_path / "checkpoint/unet")  # type: ignore[operator]
    return tmp_path / "checkpoint"


def constant(name: str, like: torch.Tensor, rule: str, *sources: str) -> Constant:
    return Constant(
        name=name,
        rule=rule,
        sources=sources or (name,),
        shape=tuple(like.shape),
        dtype=str(like.dtype).removeprefix("torch."),
        stride=tuple(like.stride()),
    )


def constants_of(recorded: RecordedCall) -> tuple[Constant, ...]:
    """A plan with every rule: a kernel laid out for its channels, q, k, v joined and quantized."""
    module = recorded.module()
    sources = tuple(f"{LAYER}.to_{x}.weight" for x in "qkv")
    rows = torch.cat([module.get_parameter(s) for s in sources])
    kernel = module.get_parameter("conv_in.weight").to(memory_format=torch.channels_last)
    shortcut = module.get_parameter("down_blocks.1.resnets.0.conv_shortcut.weight")
    scale = torch.empty(rows.shape[0], 1)
    return (
        constant("conv_in.weight", kernel, "tensor/1"),
        constant("conv_out.bias", module.get_parameter("conv_out.bias"), "tensor/1"),
        constant(
            "shortcut", shortcut.flatten(1), "view/1",
            "down_blocks.1.resnets.0.conv_shortcut.weight",
        ),
        constant("joined", rows, "concat/1", *sources),
        constant("qkv.original0", rows.to(torch.int8), "int8_rows/1", *sources),
        constant("qkv.original1", scale, "int8_rows/1", *sources),
    )  # fmt: skip


def packed(checkpoint: Path, recorded: RecordedCall, out: Path) -> dict[str, torch.Tensor]:
    """What a reader of safetensors finds in the packed file."""
    out.mkdir()
    made = pack(source_of(str(checkpoint), "unet"), recorded, constants_of(recorded), out)
    data = (out / "constants.safetensors").read_bytes()
    assert made.file.bytes == len(data)
    with safe_open(out / "constants.safetensors", framework="pt") as file:
        names = [n for n in file.keys() if not n.startswith("pad.")]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packed_constants_are_what_the_rules_make_of_the_checkpoint(
    checkpoint: Path, recorded: RecordedCall, tmp_path: Path, precision: str
) -> None:
    recorded = replace(recorded, precision=precision)
    made = packed(checkpoint, recorded, tmp_path / "out")
    dtype = getattr(torch, precision)
    weights = {n: t.to(dtype) for n, t in load_file(checkpoint / "unet" / FILE).items()}
    parts = [weights[f"{LAYER}.to_{x}.weight"] for x in "qkv"]
    data, scale = int8_rows(parts)

    assert torch.equal(made["conv_in.weight"], weights["conv_in.weight"].permute(0, 2, 3, 1))
    assert torch.equal(made["joined"], torch.cat(parts))
    assert torch.equal(made["qkv.original0"], data)
    assert torch.equal(made["qkv.original1"], scale)
    shortcut = weights["down_blocks.1.resnets.0.conv_shortcut.weight"]
    assert torch.equal(made["shortcut"], shortcut.flatten(1))
    assert torch.equal(made["conv_out.bias"], weights["conv_out.bias"])


def test_packed_bytes_are_the_same_when_packed_again_from_shards_or_not(
    checkpoint: Path, recorded: RecordedCall, tmp_path: Path
) -> None:
    packed(checkpoint, recorded, tmp_path / "one")
    folder = checkpoint / "unet"
    weights = load_file(folder / FILE)
    names = [f"diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    parts = [{k: v for i, (k, v) in enumerate(weights.items()) if i % 2 == n} for n in (0, 1)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, folder / name)
    index = {k: name for name, part in zip(names, parts, strict=True) for k in part}
    document = {"metadata": {"total_size": 1}, "weight_map": index}
    (folder / f"{FILE}.index.json").write_text(json.dumps(document))
    (folder / FILE).unlink()
    packed(checkpoint, recorded, tmp_path / "two")

    files = [(tmp_path / n / "constants.safetensors").read_bytes() for n in ("one", "two")]
    assert files[0] == files[1]


def test_packed_constants_are_of_the_variant_when_it_is_all_there_is(
    checkpoint: Path, recorded: RecordedCall, tmp_path: Path
) -> None:
    folder = checkpoint / "unet"
    half = {n: t.half() for n, t in load_file(folder / FILE).items()}
    (folder / FILE).unlink()
    save_file(half, folder / "diffusion_pytorch_model.fp16.safetensors")

    made = packed(checkpoint, recorded, tmp_path / "out")
    assert torch.equal(made["conv_out.bias"], half["conv_out.bias"].float())


def lacking(weights: dict[str, torch.Tensor]) -> None:
    del weights["conv_out.bias"]


def reshaped(weights: dict[str, torch.Tensor]) -> None:
    weights["conv_out.bias"] = torch.zeros(5)


@pytest.mark.parametrize("spoil", [lacking, reshaped])
def test_packing_is_refused_when_the_weights_are_not_the_modules(
    checkpoint: Path,
    recorded: RecordedCall,
    tmp_path: Path,
    spoil: Callable[[dict[str, torch.Tensor]], None],
) -> None:
    weights = load_file(checkpoint / "unet" / FILE)
    spoil(weights)
    save_file(weights, checkpoint / "unet" / FILE)

    with pytest.raises(BuildError, match=r"conv_out\.bias"):
        packed(checkpoint, recorded, tmp_path / "out")


def test_packing_is_refused_when_the_weights_changed_since_they_were_planned(
    checkpoint: Path, recorded: RecordedCall, tmp_path: Path
) -> None:
    source = replace(source_of(str(checkpoint), "unet"), digest="0" * 64)

    with pytest.raises(BuildError, match="changed meanwhile"):
        pack(source, recorded, constants_of(recorded), tmp_path)


def test_packing_is_refused_when_the_plan_is_not_the_modules(
    checkpoint: Path, recorded: RecordedCall, tmp_path: Path
) -> None:
    source = source_of(str(checkpoint), "unet")
    first = constants_of(recorded)[1]
    for broken, message in (
        (replace(first, sources=("no.such",)), "lacks"),
        (replace(first, shape=(8,)), "the plan says"),
        (replace(first, dtype="complex64"), "can't be packed"),
    ):
        (tmp_path / message[:5]).mkdir()
        with pytest.raises(BuildError, match=message):
            pack(source, recorded, (broken,), tmp_path / message[:5])


def test_source_is_told_when_the_folder_is_the_hubs_cache(checkpoint: Path) -> None:
    folder = checkpoint.parent / "models--org--name/snapshots" / ("c" * 40)
    folder.parent.mkdir(parents=True)
    checkpoint.rename(folder)
    found = source_of(str(folder), "unet")

    assert (found.checkpoint, found.revision) == ("org/name", "c" * 40)
    assert Source(**found.to_json()) == found


@pytest.mark.parametrize(
    ("asked", "message"), [(None, "--checkpoint FOLDER"), ("org/name", "hf download org/name")]
)
def test_source_is_refused_when_there_is_no_folder(asked: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source_of(asked, "unet")


def test_parameters_are_those_of_the_method_when_it_is_decorated() -> None:
    from diffusers import AutoencoderKL

    found = parameters_of(AutoencoderKL, "decode")
    assert found == (
        Parameter(name="z", required=True, default=None, read=True),
        Parameter(name="return_dict", required=False, default=True, read=True),
        Parameter(name="generator", required=False, default=None, read=False),
    )


def test_key_is_the_weights_too_when_they_are_packed(checkpoint: Path, tmp_path: Path) -> None:
    recipe: Any = replace(TINY, components={"unet": TINY.components["unet"]})
    request = BuildRequest(
        recipe=recipe, gpu="x86-64-v3", resolutions=("64x64",), batches=(1,),
        store=tmp_path / "store",
    )  # fmt: skip
    bare = {p.key for p in plan(request)}
    pack_too = replace(request, checkpoint=str(checkpoint), pack_weights=True)
    with pytest.raises(UsageError, match="--checkpoint FOLDER"):
        plan(replace(request, pack_weights=True))
    complete(checkpoint)
    first = {p.key for p in plan(pack_too)}
    weights = load_file(checkpoint / "unet" / FILE)
    weights["conv_out.bias"] += 1
    save_file(weights, checkpoint / "unet" / FILE)

    assert first.isdisjoint(bare)
    assert first.isdisjoint({p.key for p in plan(pack_too)})


def complete(checkpoint: Path) -> None:
    """The other files that make a folder a pipeline's."""
    for name, config in load_configs(TINY.architecture).items():
        if name == "unet":
            continue
        (checkpoint / name).mkdir(exist_ok=True)
        file = "scheduler_config.json" if name == "scheduler" else "config.json"
        (checkpoint / name / file).write_text(json.dumps(config))
    folder = importlib.resources.files("aotbuild.recipes") / "architectures/tiny"
    text = folder.joinpath("model_index.json").read_text()
    (checkpoint / "model_index.json").write_text(text)
