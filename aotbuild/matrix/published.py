"""Which cells a collection has something of already, by what its index says. Fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aotbuild import probe
from aotbuild.cache.item import Item
from aotbuild.errors import AotbuildError
from aotbuild.gpus import find_gpu
from aotbuild.matrix.cells import Cell
from aotbuild.recipe import load_recipe


def is_published(cell: Cell, items: Iterable[Item], versions: Mapping[str, str | None]) -> bool:
    """Whether one of `items` was built for the cell, by the torch and diffusers of `versions`."""
    return any(_is_of(cell, item, versions) for item in items)


def _is_of(cell: Cell, item: Item, versions: Mapping[str, str | None]) -> bool:
    covers = item.covers
    return (
        covers.recipe == load_recipe(cell.recipe).name
        and item.target.arch == _arch(cell.gpu)
        and (covers.resolution, covers.batch, item.scope)
        == (cell.resolution, cell.batch, cell.scope)
        and cell.dtype in (None, covers.dtype)
        and cell.quantization in (None, covers.quantization)
        and item.target.torch == versions["torch"]
        and item.versions.get("diffusers") == versions["diffusers"]
    )


def _arch(gpu: str) -> str | None:
    """What `gpu` is called in a target; None for a GPU that isn't here to be asked."""
    if gpu == "cpu":
        return probe.cpu_level()
    try:
        return gpu if gpu.startswith("x86") else find_gpu(gpu).arch
    except AotbuildError:
        return None
