"""A matrix document as cells: one `aotbuild build` each. Builds none.

format = 1
recipes = ["sdxl", "./mine.toml"]     # a path starts at the document's own folder
gpus = ["a100", "l4"]
resolutions = ["1024x1024"]           # this and the next: as the recipe says if left out
batches = [1, 4]
dtypes = ["bf16"]
quantizations = ["none", "int8dq"]
scopes = ["full"]
components = ["unet"]                 # of every cell; all if left out

[[include]]                           # more cells; an axis that isn't named is as above
recipes = ["sd15"]
gpus = ["t4"]

[[exclude]]                           # cells of which every named axis has such a value
gpus = ["l4"]
batches = [4]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from aotbuild.canonical import check_format, digest
from aotbuild.errors import AotbuildError, UsageError
from aotbuild.gpus import find_gpu
from aotbuild.reading import one_of, read
from aotbuild.recipe import Recipe, check_resolution, load_recipe
from aotbuild.target import CPU_LEVELS

FORMAT = 1
SCOPES = ("full", "regional")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Values along each axis; of one that is empty, what the recipe or the document says."""

    recipes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    resolutions: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One build.

    Attributes:
        recipe: its name, or an absolute path.
        gpu: as `--gpu` takes it.
        resolution: "WxH" in pixels. batch: images per call.
        dtype, quantization: None where the recipe decides.
        scope: "full" or "regional".
        components: of the recipe; () for all.
    """

    recipe: str
    gpu: str
    resolution: str
    batch: int
    dtype: str | None
    quantization: str | None
    scope: str
    components: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """ "sdxl a100 1024x1024 batch 1 bf16 int8dq", without what isn't said."""
        words = [Path(self.recipe).stem, self.gpu, self.resolution, f"batch {self.batch}"]
        words += [w for w in (self.dtype, self.quantization) if w is not None]
        return " ".join([*words, *([self.scope] if self.scope != "full" else [])])

    @property
    def slug(self) -> str:
        """Its name for a file, which no other cell has."""
        words = self.name.replace("batch ", "b").replace(" ", "-")
        return f"{words}-{digest(self.to_json())[:8]}"

    def arguments(self) -> list[str]:
        """What `aotbuild build` is called with."""
        words = [self.recipe, "--gpu", self.gpu, "--resolution", self.resolution]
        words += ["--batch", str(self.batch), "--scope", self.scope]
        words += ["--dtype", self.dtype] if self.dtype is not None else []
        words += ["--quant", self.quantization] if self.quantization is not None else []
        return words + [word for name in self.components for word in ("--component", name)]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {**asdict(self), "components": list(self.components)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document(Axes):
    format: int
    components: tuple[str, ...] = ()
    include: tuple[Axes, ...] = ()
    exclude: tuple[Axes, ...] = ()


def read_matrix(path: Path) -> tuple[Cell, ...]:
    """The cells of the document at `path`, each once, in its order.

    Raises:
        UsageError: it isn't one; a recipe, GPU or size that can't be; or nothing is left of it.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        check_format(document.get("format"), FORMAT)
        found: _Document = read(_Document, document, "")
        cells = dict.fromkeys(_cells(found, path.resolve().parent))
        if not cells:
            raise ValueError("nothing is left of its cells: name recipes and gpus, exclude fewer")
        _check_architectures(cells)
    except (OSError, ValueError, AotbuildError) as e:
        why = str(e).rstrip(".")
        raise UsageError(
            f"{path} is no matrix that can be built: {why}. docs/publishing.md shows one."
        ) from e
    return tuple(cells)


def _cells(document: _Document, folder: Path) -> Iterator[Cell]:
    names = [f.name for f in fields(Axes)]
    unused = dict(enumerate(document.exclude, 1))
    for include in (Axes(), *document.include):
        axes = {n: getattr(include, n) or getattr(document, n) for n in names}
        for cell in _product(Axes(**axes), folder):
            hits = [i for i, e in enumerate(document.exclude, 1) if _is_named(cell, e, folder)]
            for number in hits:
                unused.pop(number, None)
            if not hits:
                yield replace(cell, components=_components(cell, document.components))
    if unused:
        raise ValueError(f"exclude {min(unused)} takes no cell away: look at how it is spelt")


def architecture(gpu: str) -> str:
    """What `gpu` is called in a target; itself where this machine must be asked."""
    return gpu if gpu in ("cpu", "auto", *CPU_LEVELS) else find_gpu(gpu).arch


def _check_architectures(cells: Iterable[Cell]) -> None:
    """Refuse with a ValueError two names of one architecture, which would be built twice."""
    known: dict[Cell, Cell] = {}
    for cell in cells:
        first = known.setdefault(replace(cell, gpu=architecture(cell.gpu)), cell)
        if first != cell:
            raise ValueError(f"{first.name} and {cell.name} are one: name the GPU in one way")


def _product(axes: Axes, folder: Path) -> Iterator[Cell]:
    for name, gpu in product(axes.recipes, axes.gpus):
        path, recipe = _recipe(name, folder)
        architecture(gpu)
        for resolution, batch, dtype, quantization, scope in product(
            axes.resolutions or (recipe.call.resolution,),
            axes.batches or (recipe.call.batch,),
            axes.dtypes or (None,),
            axes.quantizations or (None,),
            axes.scopes or ("full",),
        ):
            _check(recipe, resolution, batch, dtype, quantization, scope)
            yield Cell(
                recipe=path,
                gpu=gpu,
                resolution=resolution,
                batch=batch,
                dtype=dtype,
                quantization=quantization,
                scope=scope,
            )


def _recipe(name: str, folder: Path) -> tuple[str, Recipe]:
    is_path = name.endswith(".toml") or "/" in name
    path = str((folder / Path(name).expanduser()).resolve()) if is_path else name
    return path, load_recipe(path)


def _check(
    recipe: Recipe,
    resolution: str,
    batch: int,
    dtype: str | None,
    quantization: str | None,
    scope: str,
) -> None:
    check_resolution(resolution, recipe.call.multiple_px)
    one_of("scopes", scope, SCOPES)
    if batch < 1:
        raise ValueError(f"batches: {batch} is less than 1")
    recipe.override(dtype=dtype, quantization=quantization)


def _components(cell: Cell, named: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `named` that the cell's recipe has."""
    if not named:
        return ()
    kept = tuple(n for n in named if n.partition(".")[0] in load_recipe(cell.recipe).components)
    if not kept:
        raise ValueError(f"components: {cell.recipe} has none of {', '.join(named)}")
    return kept


def _is_named(cell: Cell, axes: Axes, folder: Path) -> bool:
    recipes = tuple(_recipe(n, folder)[0] for n in axes.recipes)
    pairs = (
        (recipes, cell.recipe),
        (axes.gpus, cell.gpu),
        (axes.resolutions, cell.resolution),
        (axes.batches, cell.batch),
        (axes.dtypes, cell.dtype),
        (axes.quantizations, cell.quantization),
        (axes.scopes, cell.scope),
    )
    named = [(values, value) for values, value in pairs if values]
    return bool(named) and all(value in values for values, value in named)
