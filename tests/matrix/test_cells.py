from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aotbuild.errors import UsageError
from aotbuild.matrix.cells import Cell, read_matrix

BASE = 'format = 1\nrecipes = ["sd15"]\ngpus = ["a100"]\n'


def matrix(folder: Path, text: str) -> tuple[Cell, ...]:
    path = folder / "matrix.toml"
    path.write_text(text)
    return read_matrix(path)


def test_cells_are_the_product_of_all_axes(tmp_path: Path) -> None:
    cells = matrix(
        tmp_path,
        'format = 1\nrecipes = ["sd15", "sdxl"]\ngpus = ["a100", "l4"]\n'
        'resolutions = ["512x512", "768x768"]\nbatches = [1, 4]\ndtypes = ["bf16"]\n'
        'quantizations = ["none", "int8dq"]\n',
    )
    assert len(cells) == len(set(cells)) == 32
    assert cells[0].name == "sd15 a100 512x512 batch 1 bf16 none"
    assert cells[0].arguments() == [
        "sd15", "--gpu", "a100", "--resolution", "512x512", "--batch", "1", "--scope", "full",
        "--dtype", "bf16", "--quant", "none",
    ]  # fmt: skip


def test_what_is_left_out_comes_from_the_recipe(tmp_path: Path) -> None:
    (cell,) = matrix(tmp_path, BASE)
    assert (cell.resolution, cell.batch, cell.dtype, cell.quantization) == (
        "512x512",
        1,
        None,
        None,
    )
    assert "--dtype" not in cell.arguments()


def test_include_adds_and_exclude_takes_away(tmp_path: Path) -> None:
    cells = matrix(
        tmp_path,
        BASE + 'batches = [1, 4]\n[[include]]\nrecipes = ["sdxl"]\nbatches = [1]\n'
        '[[include]]\ngpus = ["t4"]\ndtypes = ["fp16"]\n[[exclude]]\n'
        'gpus = ["t4"]\nbatches = [4]\n',
    )
    assert [c.name for c in cells] == [
        "sd15 a100 512x512 batch 1",
        "sd15 a100 512x512 batch 4",
        "sdxl a100 1024x1024 batch 1",
        "sd15 t4 512x512 batch 1 fp16",
    ]


def test_files_names_differ_when_recipes_of_one_name_are_of_two_folders(tmp_path: Path) -> None:
    (cell,) = matrix(tmp_path, BASE)
    one, other = (replace(cell, recipe=f"/{folder}/mine.toml") for folder in ("a", "b"))
    assert one.name == other.name
    assert one.slug != other.slug
    assert one.slug.startswith("mine-a100-512x512-b1-")


def test_components_are_those_that_a_recipe_has(tmp_path: Path) -> None:
    text = BASE.replace('"sd15"', '"sd15", "flux1-dev"') + 'components = ["unet", "vae.decode"]\n'
    first, second = matrix(tmp_path, text)
    assert (first.components, second.components) == (("unet", "vae.decode"), ("vae.decode",))


def test_recipes_path_starts_at_the_documents_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"No recipe file at {tmp_path}/mine.toml"):
        matrix(tmp_path, BASE.replace("sd15", "./mine.toml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("format = 2\n", "format"),
        ("format = 1\n", "nothing is left"),
        (BASE + "[[exclude]]\ngpus = ['a100']\n", "nothing is left"),
        (BASE + "[[exclude]]\ngpus = ['a10o']\n", "exclude 1 takes no cell away"),
        (BASE.replace('"a100"', '"a100", "sm_80"'), "name the GPU in one way"),
        (BASE + "resolution = ['512x512']\n", "did you mean 'resolutions'"),
        (BASE + "batches = ['one']\n", "batches"),
        (BASE + "batches = [0]\n", "0 is less than 1"),
        (BASE + "resolutions = ['500x500']\n", "multiple of 64"),
        (BASE + "dtypes = ['bf61']\n", "did you mean 'bf16'"),
        (BASE + "quantizations = ['int4']\n", "quantization"),
        (BASE + "scopes = ['blocks']\n", "scopes"),
        (BASE + "components = ['transformer']\n", "has none of transformer"),
        (BASE.replace("a100", "a10o"), "a10o"),
        (BASE.replace("sd15", "sd51"), "Did you mean sd15"),
        ("format = 1\nrecipes = 'sd15'\n", "expected a list"),
        ("format = \n", "Invalid value"),
    ],
)
def test_document_is_refused_with_the_reason_when_it_is_odd(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=r"no matrix that can be built.*docs/publishing\.md") as e:
        matrix(tmp_path, text)
    assert expected in str(e.value)
