from __future__ import annotations

import json
from pathlib import Path

import pytest

from aotbuild.cache.weight_files import find_weights, origin_of
from aotbuild.errors import UsageError

PLAIN = "diffusion_pytorch_model.safetensors"
HALF = "diffusion_pytorch_model.fp16.safetensors"
SHARDS = tuple(f"diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2))


@pytest.fixture
def unet(tmp_path: Path) -> Path:
    folder = tmp_path / "unet"
    folder.mkdir()
    return folder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(name.encode())


def index(folder: Path, names: tuple[str, ...], variant: str = "") -> None:
    path = folder / f"diffusion_pytorch_model.safetensors.index{variant}.json"
    path.write_text(json.dumps({"weight_map": {f"w{i}": n for i, n in enumerate(names)}}))


def test_weights_are_the_plain_file_when_there_are_variants_too(unet: Path) -> None:
    write(unet, PLAIN, HALF, "config.json")

    found = find_weights(unet.parent, "unet")
    assert (found.names, found.variant) == ((PLAIN,), None)


def test_weights_are_the_variant_when_there_is_no_plain_file(unet: Path) -> None:
    write(unet, HALF)

    found = find_weights(unet.parent, "unet")
    assert (found.names, found.variant) == ((HALF,), "fp16")


def test_weights_are_the_shards_when_there_is_an_index(unet: Path) -> None:
    write(unet, *SHARDS, PLAIN)
    index(unet, SHARDS)

    assert find_weights(unet.parent, "unet").names == SHARDS


def test_weights_are_the_variants_shards_when_only_it_has_an_index(unet: Path) -> None:
    names = tuple(n.replace("model-", "model.fp16-") for n in SHARDS)
    write(unet, *names)
    index(unet, names, ".fp16")

    found = find_weights(unet.parent, "unet")
    assert (found.names, found.variant) == (names, "fp16")


def test_digest_changes_when_a_byte_or_a_name_does(unet: Path) -> None:
    write(unet, PLAIN)
    first = find_weights(unet.parent, "unet").digest()
    (unet / PLAIN).rename(unet / HALF)
    renamed = find_weights(unet.parent, "unet").digest()
    (unet / HALF).write_bytes(b"x")

    assert len({first, renamed, find_weights(unet.parent, "unet").digest()}) == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "no diffusion_pytorch_model.safetensors"),
        (("diffusion_pytorch_model.bin",), "as a pickle, diffusion_pytorch_model.bin"),
        ((HALF, "diffusion_pytorch_model.ema.safetensors"), "several variants, ema, fp16"),
        ((SHARDS[0],), "no diffusion_pytorch_model.safetensors"),
    ],
)
def test_weights_are_refused_when_it_is_not_clear_which(
    unet: Path, names: tuple[str, ...], message: str
) -> None:
    write(unet, *names)

    with pytest.raises(UsageError, match=message):
        find_weights(unet.parent, "unet")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"weight_map": {}}', "names no file"),
        ("[" * 100_000, "nested deeper"),
        ('{"weight_map": ' * 100_000, "nested deeper"),
        ('{"weight_map": 3}', "isn't an index"),
        ("", "isn't an index"),
    ],
)
def test_index_is_refused_when_it_is_no_map_of_weights(unet: Path, text: str, reason: str) -> None:
    (unet / "diffusion_pytorch_model.safetensors.index.json").write_text(text)
    with pytest.raises(UsageError, match=reason):
        find_weights(unet.parent, "unet")


@pytest.mark.parametrize("names", [SHARDS, ("../x.safetensors",), ("x.bin",)])
def test_index_is_refused_when_it_names_what_is_not_beside_it(
    unet: Path, names: tuple[str, ...]
) -> None:
    write(unet, "x.bin")
    write(unet.parent, "x.safetensors")
    index(unet, names)

    with pytest.raises(UsageError, match="isn't an index"):
        find_weights(unet.parent, "unet")


def test_origin_is_told_when_the_folder_is_the_hubs_cache(tmp_path: Path) -> None:
    commit = "c" * 40

    assert origin_of(tmp_path / "models--org--a-name/snapshots" / commit) == ("org/a-name", commit)
    assert origin_of(tmp_path / "models--org--a-name") == (None, None)
    assert origin_of(tmp_path) == (None, None)
