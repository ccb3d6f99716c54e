"""Recipes: what to build from a checkpoint, as data; TOML in, dataclasses out. Builds nothing."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from aotbuild.errors import RecipeError
from aotbuild.reading import one_of, read

FORMAT = 1
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Precision names, and the dtype that weights are loaded in; tf32 is float32 with TF32 matmuls."""

METHODS = ("forward", "decode", "encode")
MEMORY_FORMATS = ("contiguous", "channels_last")
ATTENTIONS = ("sdpa", "math")
QUANTIZATIONS = ("none", "int8dq")
CPU_FIELDS = ("memory_format", "fuse_qkv", "attention", "quantization")
ARGUMENT_RULES = ("timestep/1",)
Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecipe:
    """A tensor that the caller hands to the pipeline.

    Attributes:
        shape: extents; "batch", "height" and "width" (in pixels) stand for the call's own.
        dtype: "float" follows the precision; else torch's name, "int64".
        fill: the value of every element.
    """

    shape: tuple[int | str, ...]
    dtype: str = "float"
    fill: float = 0.0

    def __post_init__(self) -> None:
        for extent in self.shape:
            if isinstance(extent, str) and extent not in ("batch", "height", "width"):
                raise ValueError(f"shape: {extent!r} is not a number, batch, height or width")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecipe:
    """The pipeline call that a rehearsal makes.

    Attributes:
        resolution: "WIDTHxHEIGHT" in pixels.
        multiple_px: width and height must be multiples of it.
        batch: images per prompt call, before guidance doubles it.
        arguments: further arguments of the pipeline's `__call__`.
        tensors: tensor arguments by name; they stand in for the text encoders.
        variants: calls to build for, by name; each holds the arguments that differ.
    """

    resolution: str
    multiple_px: int
    batch: int = 1
    arguments: dict[str, Scalar] = field(default_factory=dict)
    tensors: dict[str, TensorRecipe] = field(default_factory=dict)
    variants: dict[str, dict[str, Scalar]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.multiple_px < 1 or self.batch < 1:
            raise ValueError("multiple_px and batch must be at least 1")
        check_resolution(self.resolution, self.multiple_px)


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Filter:
    """Which linear layers are quantized to int8.

    Attributes:
        min_in_features: layers with fewer input features stay as they are.
        skip_shapes: (input features, output features) of layers that stay as they are.
        skip_layers: shell patterns of paths that stay as they are: "proj_out", "*.norm*.linear".
        pointwise_channels: 1x1 convolutions with as many input or output channels are made linear
            layers first.
    """

    min_in_features: int = 1
    skip_shapes: tuple[tuple[int, int], ...] = ()
    skip_layers: tuple[str, ...] = ()
    pointwise_channels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for shape in self.skip_shapes:
            if len(shape) != 2:
                raise ValueError(f"skip_shapes: {list(shape)} isn't [in_features, out_features]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRecipe:
    """One component of the pipeline, and how it is prepared.

    Attributes:
        methods: the methods to compile: "forward", "decode", "encode".
        memory_format: of its convolution weights.
        fuse_qkv: query, key and value projections as one matrix product.
        attention: "sdpa", or "math" for the plain processors.
        quantization: "none", or "int8dq": int8 weights by row, int8 activations by row at each
            call.
        int8: which layers "int8dq" quantizes; a component without it is never quantized.
        rules: argument name -> the rule that brings it to one form, "timestep/1".
        inductor: options of `torch._inductor.config`, by dotted name.
        cpu: fields of `CPU_FIELDS` that differ where the target is a CPU, whose weights are often
            mapped from a file: another layout would copy all of them at every start.
    """

    methods: tuple[str, ...]
    memory_format: str = "contiguous"
    fuse_qkv: bool = False
    attention: str = "sdpa"
    quantization: str = "none"
    int8: Int8Filter | None = None
    rules: dict[str, str] = field(default_factory=dict)
    inductor: dict[str, Scalar] = field(default_factory=dict)
    cpu: dict[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for method in self.methods:
            one_of("methods", method, METHODS)
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise ValueError("methods: name each method once, and at least one")
        if "forward" in self.methods and len(self.methods) > 1:
            raise ValueError("methods: a component is called by forward, or by decode and encode")
        one_of("memory_format", self.memory_format, MEMORY_FORMATS)
        one_of("attention", self.attention, ATTENTIONS)
        one_of("quantization", self.quantization, QUANTIZATIONS)
        if self.quantization != "none" and self.int8 is None:
            raise ValueError(
                f"quantization = {self.quantization!r} needs a table `int8` that says which layers"
            )
        for rule in self.rules.values():
            one_of("rules", rule, ARGUMENT_RULES)
        if self.fuse_qkv and self.attention == "math":
            raise ValueError(
                "fuse_qkv needs attention = 'sdpa': diffusers' fused processors call SDPA"
            )
        if self.cpu:
            for name in self.cpu:
                one_of("cpu", name, CPU_FIELDS)
            self.on("cpu")

    def quantized(self, quantization: str) -> ComponentRecipe:
        """This component with that quantization on every device, where it has a filter for it."""
        if self.int8 is None:
            return self
        cpu = {name: value for name, value in self.cpu.items() if name != "quantization"}
        return replace(self, quantization=quantization, cpu=cpu)

    def on(self, device: str) -> ComponentRecipe:
        """This component as it is prepared for `device`, "cpu" or "cuda"."""
        found: ComponentRecipe = read(
            ComponentRecipe,
            {**asdict(self), "cpu": {}, **(self.cpu if device == "cpu" else {})},
            "cpu" if device == "cpu" else "",
        )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to build for one checkpoint.

    Attributes:
        format: version of the file; others are refused.
        name: lower case, digits, dots and dashes.
        title: for people.
        checkpoint: Hub repository of the base weights.
        revision: its commit, where known.
        pipeline: the pipeline class of diffusers.
        architecture: folder of component configs below `recipes/architectures`, or a path with a
            slash in it to a diffusers folder.
        dtype: a precision of `DTYPES`.
        components: by the pipeline's own names.
        call: the default call.
    """

    format: int
    name: str
    title: str
    pipeline: str
    architecture: str
    dtype: str
    components: dict[str, ComponentRecipe]
    call: CallRecipe
    checkpoint: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format!r} is unknown; this aotbuild reads {FORMAT}")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.name):
            raise ValueError(f"name {self.name!r}: use lower case, digits, dots and dashes")
        one_of("dtype", self.dtype, tuple(DTYPES))
        if not self.components:
            raise ValueError("components: name at least one")

    @property
    def torch_dtype(self) -> str:
        """The dtype the weights are loaded in, as torch names it."""
        return DTYPES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Recipe:
        """The inverse of `to_json`, and the reader of the TOML document.

        Raises:
            ValueError: naming the field: unknown, missing, of a wrong type or value.
        """
        recipe: Recipe = read(cls, document, "")
        return recipe

    def override(
        self,
        *,
        dtype: str | None = None,
        quantization: str | None = None,
        resolution: str | None = None,
        batch: int | None = None,
    ) -> Recipe:
        """This recipe with what the command line said in place of its own.

        Raises:
            RecipeError: a quantization that no component has a filter for.
        """
        call = self.call
        if resolution is not None:
            call = replace(call, resolution=resolution)
        if batch is not None:
            call = replace(call, batch=batch)
        components = self.components
        if quantization is not None:
            components = {n: c.quantized(quantization) for n, c in components.items()}
            if quantization not in {c.quantization for c in components.values()}:
                raise RecipeError(
                    f"Recipe {self.name} says of no component which layers {quantization} is for: "
                    "give one a table `int8`; docs/recipes.md explains it."
                )
        return replace(self, dtype=dtype or self.dtype, call=call, components=components)

    def on(self, device: str) -> Recipe:
        """This recipe with each component as it is prepared for `device`, "cpu" or "cuda"."""
        components = {name: c.on(device) for name, c in self.components.items()}
        return replace(self, components=components)


def parse_resolution(text: str) -> tuple[int, int]:
    """(width, height) in pixels of "WIDTHxHEIGHT".

    Raises:
        ValueError: it isn't of that form.
    """
    match = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if match is None:
        raise ValueError(f"resolution {text!r}: write WIDTHxHEIGHT in pixels, like 1024x1024")
    return int(match[1]), int(match[2])


def check_resolution(text: str, multiple_px: int) -> tuple[int, int]:
    """`parse_resolution`, and a ValueError naming the nearest sizes if it isn't on the grid."""
    width, height = parse_resolution(text)
    if width % multiple_px or height % multiple_px:
        near = "x".join(str(max(1, round(n / multiple_px)) * multiple_px) for n in (width, height))
        raise ValueError(
            f"resolution {text} isn't a multiple of {multiple_px} pixels, as this model needs; "
            f"the nearest is {near}"
        )
    return width, height


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that ship with aotbuild, sorted."""
    files = (f.name for f in _data().iterdir())
    return tuple(sorted(n.removesuffix(".toml") for n in files if n.endswith(".toml")))


def load_recipe(name_or_path: str) -> Recipe:
    """The shipped recipe of that name, or the one in that TOML file.

    A relative path to configs in the file starts at the file's own folder.

    Raises:
        RecipeError: no such recipe (with the nearest name), or what is wrong in it, and where.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        file: Traversable | Path = Path(name_or_path).expanduser()
        if not file.is_file():
            raise RecipeError(
                f"No recipe file at {name_or_path}. `aotbuild recipes` lists those that ship."
            )
    else:
        file = _data() / f"{name_or_path}.toml"
        if name_or_path not in recipe_names():
            near = difflib.get_close_matches(name_or_path, recipe_names(), n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise RecipeError(
                f"Unknown recipe {name_or_path!r}. {hint}`aotbuild recipes` lists them all; "
                "a path to your own TOML file works too."
            )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise RecipeError(f"Recipe {name_or_path} can't be read as UTF-8 text: {e}.") from e
    recipe = parse_recipe(text, where=name_or_path)
    folder = Path(recipe.architecture).expanduser()
    if isinstance(file, Path) and "/" in recipe.architecture and not folder.is_absolute():
        return replace(recipe, architecture=str((file.resolve().parent / folder).resolve()))
    return recipe


def parse_recipe(text: str, *, where: str) -> Recipe:
    """The recipe of a TOML document; `where` names it in errors.

    Raises:
        RecipeError: not TOML, or a field that is unknown, missing, of a wrong type or value.
    """
    try:
        return Recipe.from_json(tomllib.loads(text))
    except (ValueError, RecursionError) as e:
        reason = str(e).rstrip(".") or type(e).__name__
        stop = "" if reason.endswith("?") else "."
        raise RecipeError(
            f"Recipe {where}: {reason}{stop} docs/recipes.md explains each field."
        ) from e


def load_configs(architecture: str) -> dict[str, dict[str, Any]]:
    """Component configs by component name, of a shipped architecture or a diffusers folder.

    Reads `<name>.json`, and `<name>/config.json` (`scheduler/scheduler_config.json`) as diffusers
    lays a checkpoint out. `model_index` is among them where there is one.

    Raises:
        RecipeError: no such architecture or folder, or a config that isn't a JSON object.
    """
    folder: Traversable | Path = Path(architecture).expanduser()
    if "/" not in architecture:
        folder = _data() / "architectures" / architecture
    if not folder.is_dir():
        raise RecipeError(
            f"No component configs at {architecture!r}: neither a shipped architecture nor a "
            "diffusers folder. `aotbuild recipes` lists the shipped ones."
        )
    found: dict[str, dict[str, Any]] = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        file = entry
        if entry.is_dir():
            named = (
                entry / n
                for n in ("config.json", f"{entry.name}_config.json", "scheduler_config.json")
            )
            file = next((f for f in named if f.is_file()), entry)
        if file.name.endswith(".json") and file.is_file():
            found[entry.name.removesuffix(".json")] = _read_config(file)
    return found


def _read_config(file: Traversable | Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as e:
        raise RecipeError(f"{file} isn't JSON: {e}.") from e
    if not isinstance(config, dict):
        raise RecipeError(
            f"{file} holds {json.dumps(config)[:40]}, where a config is a JSON object, as "
            "diffusers' save_pretrained writes it."
        )
    return config


def _data() -> Traversable:
    return resources.files("aotbuild.recipes")
