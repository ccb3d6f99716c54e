from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aotbuild.commands.request import Arguments, make_request
from aotbuild.errors import ToolchainError, UsageError


def arguments(tmp_path: Path, **changes: Any) -> Arguments:
    said: dict[str, Any] = {
        "recipe": "tiny", "gpu": "cpu", "resolution": (), "batch": (), "variant": (), "dtype": None,
        "quant": None, "attention": None, "scope": "full", "component": (), "dynamic": None,
        "checkpoint": None, "pack_weights": False, "store": tmp_path, "tune": False,
        "no_verify": False,
    }  # fmt: skip
    return Arguments(**{**said, **changes})


def checkpoint(tmp_path: Path, file: str = "diffusion_pytorch_model.safetensors") -> str:
    for name in ("unet", "vae"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
        (tmp_path / "checkpoint" / name / file).write_bytes(b"x")
    return str(tmp_path / "checkpoint")


def test_request_packs_weights_when_a_folder_with_some_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    request = make_request(arguments(tmp_path, checkpoint=folder, pack_weights=True))

    assert (request.pack_weights, request.checkpoint) == (True, folder)
    assert not make_request(arguments(tmp_path)).pack_weights


def test_request_has_each_size_once_when_lists_and_options_repeat(tmp_path: Path) -> None:
    request = make_request(
        arguments(tmp_path, batch=("1,4", "16, 4"), resolution=("64x64,128x64", "64x64"))
    )

    assert request.batches == (1, 4, 16)
    assert request.resolutions == ("64x64", "128x64")


@pytest.mark.parametrize("batch", ["", "1,", "0", "-1", "1.5", "1,five", "4097", "1;4", "one"])
def test_batch_is_refused_in_one_sentence_when_it_is_nonsense(tmp_path: Path, batch: str) -> None:
    with pytest.raises(UsageError, match="--batch"):
        make_request(arguments(tmp_path, batch=(batch,)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention": "flsh"}, UsageError, "did you mean 'flash'"),
        ({"attention": "_native_npu"}, UsageError, "hardware that aotbuild doesn't build for"),
        ({"attention": "_native_flash"}, UsageError, "is for cuda, not for cpu"),
        ({"attention": "flash", "gpu": "a100"}, ToolchainError, "pip install 'flash-attn>=2.6.3'"),
        ({"attention": "sage_hub", "gpu": "a100"}, ToolchainError, "kernels>=0.12"),
        (
            {"attention": "math", "gpu": "a100", "recipe": "sdxl-ip-adapter"},
            UsageError,
            "neither fused nor plain",
        ),
    ],
)
def test_attention_is_refused_before_the_work_when_it_can_not_be_built_here(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make_request(arguments(tmp_path, **changes))


def test_attention_is_of_the_denoiser_alone_when_it_is_named(tmp_path: Path) -> None:
    recipe = make_request(arguments(tmp_path, attention="math")).recipe
    assert recipe.components["unet"].attention == "math"
    assert not recipe.components["unet"].fuse_qkv
    assert recipe.components["vae"].attention == "sdpa"
    assert recipe.components["vae"].fuse_qkv


def test_packing_is_refused_before_the_work_when_no_weights_are_named(tmp_path: Path) -> None:
    for asked, message in (
        (None, "--checkpoint FOLDER"),
        ("org/name", "hf download org/name"),
        (str(tmp_path), "no diffusion_pytorch_model.safetensors"),
        (checkpoint(tmp_path, "diffusion_pytorch_model.bin"), "as a pickle"),
    ):
        with pytest.raises(UsageError, match=message):
            make_request(arguments(tmp_path, checkpoint=asked, pack_weights=True))
