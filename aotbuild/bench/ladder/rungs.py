"""The rungs of the ladder as data: what each changes, and where it can't be climbed. Runs none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aotbuild.recipe import ComponentRecipe, Recipe

EAGER = "eager"
COMPILE = "compile"
REGIONAL = "regional"
ACCELERATE = "accelerate"
AOT = "aot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One experiment.

    Attributes:
        name: as `--only` takes it.
        title: for people, as the plot shows it.
        dtype: of the pipeline, as recipes name it.
        attention: "math" for diffusers' plain processors, "sdpa".
        channels_last: convolution weights in that layout, where the recipe asks for it.
        fuse: query, key and value as one product, where the recipe asks for it.
        quantization: "none" or "int8dq".
        way: "eager"; "compile" for torch.compile of whole components, "regional" for diffusers'
            `compile_repeated_blocks`, "accelerate" for its `compile_regions`; "aot" for artifacts.
        mode: torch.compile's, in place of the recipe's own options.
        dynamic: compiled for any size.
    """

    name: str
    title: str
    dtype: str = "bf16"
    attention: str = "sdpa"
    channels_last: bool = False
    fuse: bool = False
    quantization: str = "none"
    way: str = EAGER
    mode: str | None = None
    dynamic: bool = False


def _compiled(name: str, title: str, **changes: Any) -> Rung:
    """A rung of the published ladder from torch.compile on."""
    return Rung(**{"name": name, "title": title, "channels_last": True, "way": COMPILE, **changes})


RUNGS = (
    Rung(name="fp32", title="fp32, plain attention", dtype="fp32", attention="math"),
    Rung(name="tf32", title="tf32, plain attention", dtype="tf32", attention="math"),
    Rung(name="bf16", title="bf16, plain attention", attention="math"),
    Rung(name="fp16", title="fp16, plain attention", dtype="fp16", attention="math"),
    Rung(name="sdpa", title="bf16, SDPA"),
    _compiled("compile", "+ torch.compile, channels_last"),
    _compiled("fused", "+ fused QKV", fuse=True),
    _compiled("int8", "+ int8 dynamic quantization", fuse=True, quantization="int8dq"),
    _compiled("regional", "repeated blocks compiled", way=REGIONAL),
    _compiled("accelerate", "accelerate's compiled regions", way=ACCELERATE),
    _compiled("dynamic", "compiled for any size", dynamic=True),
    _compiled("reduce-overhead", "mode reduce-overhead", mode="reduce-overhead"),
    _compiled("max-autotune", "mode max-autotune", mode="max-autotune"),
    _compiled("aot", "artifacts, bf16", fuse=True, way=AOT),
    _compiled("aot-int8", "artifacts, int8", fuse=True, quantization="int8dq", way=AOT),
)
"""In the order in which they are climbed; what follows "fused" and "int8" stands beside them."""

NAMES = tuple(rung.name for rung in RUNGS)


def skip_reason(
    rung: Rung, recipe: Recipe, device: str, configs: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Why the rung can't be climbed on this kind of device with this recipe; None where it can."""
    components = recipe.components.values()
    if rung.dtype == "tf32" and device != "cuda":
        return "tf32 is a mode of NVIDIA GPUs"
    if rung.mode == "reduce-overhead" and device != "cuda":
        return "reduce-overhead is CUDA graphs, which need a GPU"
    if rung.quantization != "none" and not any(c.int8 for c in components):
        return f"{recipe.name} names no layers to quantize"
    if rung.fuse and rung.way != AOT and rung.quantization == "none" and not _fuses(recipe):
        return f"{recipe.name} fuses no projections: it would be the rung before it again"
    if rung.way in (REGIONAL, ACCELERATE) and not any(
        _repeats(n, configs) for n in denoisers(recipe)
    ):
        return f"{recipe.name}'s denoiser names no repeated blocks"
    return None


def component_for(component: ComponentRecipe, rung: Rung) -> ComponentRecipe:
    """`component` prepared as the rung has it, fused and quantized where it can be.

    What a recipe sets for CPUs alone is left out: the ladder is the same everywhere.
    """
    return replace(
        component,
        cpu={},
        attention=rung.attention,
        memory_format=component.memory_format if rung.channels_last else "contiguous",
        fuse_qkv=rung.fuse and component.fuse_qkv,
        quantization=rung.quantization if component.int8 is not None else "none",
    )


def denoisers(recipe: Recipe) -> Iterator[str]:
    """The components that are called by `forward`: a denoiser, and a ControlNet before it."""
    return (name for name, c in recipe.components.items() if c.methods == ("forward",))


def _fuses(recipe: Recipe) -> bool:
    return any(c.fuse_qkv for c in recipe.components.values())


def _repeats(name: str, configs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether diffusers' class of the component names blocks that repeat."""
    from aotbuild.build.modules import model_class

    return bool(getattr(model_class(configs[name]), "_repeated_blocks", None))
