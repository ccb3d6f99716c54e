"""Which cells a collection has something of already, by what its index says. Fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aotbuild import probe
from aotbuild.cache.item import Item
from aotbuild.cache.units import is_unit_of
from aotbuild.matrix.cells import Cell, architecture
from aotbuild.recipe import load_recipe


def is_published(cell: Cell, items: Iterable[Item], versions: Mapping[str, str | None]) -> bool:
    """Whether each of the cell's components has one of `items`, built for the cell by the packages
    of `versions`.
    """
    recipe = load_recipe(cell.recipe)
    mine = [i for i in items if i.covers.recipe == recipe.name and _is_of(cell, i, versions)]
    return all(
        any(is_unit_of(item.component, name) for item in mine)
        for name in cell.components or recipe.components
    )


def _is_of(cell: Cell, item: Item, versions: Mapping[str, str | None]) -> bool:
    covers = item.covers
    return (
        item.target.arch == _arch(cell.gpu)
        and (covers.resolution, covers.batch, item.scope)
        == (cell.resolution, cell.batch, cell.scope)
        and cell.dtype in (None, covers.dtype)
        and cell.quantization in (None, covers.quantization)
        and item.target.torch == versions["torch"]
        and item.target.triton in (None, versions["triton"])
        and item.versions.get("diffusers") == versions["diffusers"]
    )


def _arch(gpu: str) -> str:
    """What `gpu` is called in a target."""
    return probe.cpu_level() if gpu == "cpu" else architecture(gpu)
