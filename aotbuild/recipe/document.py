"""A whole recipe: what to build from a checkpoint; TOML in, dataclasses out. Finds no file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from aotbuild.canonical import check_format
from aotbuild.errors import RecipeError
from aotbuild.reading import one_of, read
from aotbuild.recipe.call import CallRecipe, LengthRecipe, VariantRecipe
from aotbuild.recipe.component import ComponentRecipe

FORMAT = 1
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Precision names, and the dtype that weights are loaded in; tf32 is float32 with TF32 matmuls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to build for one checkpoint.

    Attributes:
        format: version of the file; others are refused.
        name: lower case, digits, dots and dashes.
        title: for people.
        checkpoint: Hub repository of the base weights.
        revision: its commit, where known.
        pipeline: the pipeline class of diffusers; a call variant may name another.
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
        check_format(self.format, FORMAT)
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.name):
            raise ValueError(f"name {self.name!r}: use lower case, digits, dots and dashes")
        one_of("dtype", self.dtype, tuple(DTYPES))
        if not self.components:
            raise ValueError("components: name at least one")

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The pipeline classes that its calls run, each once."""
        variants = self.call.variants.values()
        return tuple(dict.fromkeys(v.pipeline or self.pipeline for v in variants)) or (
            self.pipeline,
        )

    def vary(self, variant: str) -> Recipe:
        """This recipe with one call alone, what its variant says worked in.

        Args:
            variant: one of `call.variants`; "default" where there are none.

        Raises:
            RecipeError: there is no such variant.
        """
        call = self.call
        if variant not in call.variants and (call.variants or variant != "default"):
            raise RecipeError(
                f"Recipe {self.name} has no call variant {variant!r}; it has "
                f"{', '.join(call.variants) or 'default'}."
            )
        ours = call.variants.get(variant, VariantRecipe())
        varied = replace(
            call,
            arguments={**call.arguments, **ours.arguments},
            tensors={**call.tensors, **ours.tensors},
            lengths={**call.lengths, **ours.lengths},
            variants={},
        )
        return replace(self, pipeline=ours.pipeline or self.pipeline, call=varied)

    def at_lengths(self, lengths: Mapping[str, int]) -> Recipe:
        """This recipe with its named lengths fixed, whatever a variant says of them."""
        fixed = {name: LengthRecipe(usual=usual) for name, usual in lengths.items()}
        variants = {
            n: replace(v, lengths={**v.lengths, **fixed}) for n, v in self.call.variants.items()
        }
        call = replace(self.call, lengths={**self.call.lengths, **fixed}, variants=variants)
        return replace(self, call=call)

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
        attention: str | None = None,
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
        if attention is not None:
            components = {n: c.attending(attention) for n, c in components.items()}
        if quantization is not None:
            components = {n: c.quantized(quantization) for n, c in components.items()}
            if quantization not in {c.quantization for c in components.values()}:
                raise RecipeError(
                    f"Recipe {self.name} says of no component which layers {quantization} is for: "
                    "give one a table `int8`; docs/recipes.md explains it."
                )
        return replace(self, dtype=dtype or self.dtype, call=call, components=components)

    def without_folders(self) -> Recipe:
        """This recipe as a manifest records it: of each folder with configs its name alone."""
        return self.with_folders(lambda architecture: architecture.rstrip("/").rpartition("/")[2])

    def with_folders(self, convert: Callable[[str], str]) -> Recipe:
        """This recipe with every `architecture` replaced by `convert` of it."""
        components = {
            name: replace(c, architecture=convert(c.architecture)) if c.architecture else c
            for name, c in self.components.items()
        }
        return replace(self, architecture=convert(self.architecture), components=components)

    def on(self, device: str) -> Recipe:
        """This recipe with each component as it is prepared for `device`, "cpu" or "cuda"."""
        components = {name: c.on(device) for name, c in self.components.items()}
        return replace(self, components=components)


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
