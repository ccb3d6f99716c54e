"""What `--backend inductor-cache` can be asked for, and how torch.compile is then called."""

from __future__ import annotations

from dataclasses import replace

from aotbuild import probe
from aotbuild.build.compile import check_options
from aotbuild.build.request import BuildRequest
from aotbuild.build.targets import runs_here
from aotbuild.cache.backend import INDUCTOR_CACHE, CompileSettings
from aotbuild.errors import TargetError, UsageError
from aotbuild.recipe import ComponentRecipe
from aotbuild.target import Target


def check_bundles(request: BuildRequest, target: Target) -> None:
    """Refuse a request for bundles that can't be made here; any other passes.

    Raises:
        UsageError: packed weights, tuning, int8, or an attention backend.
        TargetError: the target isn't this very machine.
    """
    if request.backend != INDUCTOR_CACHE:
        return
    if request.pack_weights or request.tune:
        what = "--pack-weights" if request.pack_weights else "--tune"
        raise UsageError(f"{what} is for artifacts compiled ahead of time: leave it out.")
    components = request.recipe.on(target.device).components
    if any(c.quantization != "none" for c in components.values()):
        raise UsageError(
            "--backend inductor-cache: int8 weights are the loader's to make, which torch.compile "
            "has no part in. Type --quant none, or leave --backend out."
        )
    if any(c.attention not in ("sdpa", "native") for c in components.values()):
        raise UsageError(
            "--backend inductor-cache: torch.compile takes the attention that the pipeline has. "
            "Type --attention sdpa, or leave --backend out."
        )
    here = probe.this_machine(target.device)
    if not runs_here(target) or here.arch != target.arch:
        raise TargetError(
            f"--backend inductor-cache compiles for the machine that it runs on, which is a "
            f"{here.device} {here.arch}, not {target.arch}: build it where it will run, or leave "
            "--backend out, which needs no such machine."
        )


def for_bundle(component: ComponentRecipe) -> ComponentRecipe:
    """`component` as a service can prepare its own module: by diffusers' methods alone.

    What `preparations` name is for torch.export; torch.compile does without.
    """
    return replace(component, preparations=())


def settings_for(component: ComponentRecipe, *, dynamic: bool) -> CompileSettings:
    """How torch.compile is called for `component`.

    Raises:
        RecipeError: an option that this torch doesn't know, or that aotbuild sets itself.
    """
    import torch._inductor.config as config

    from aotbuild.loaders.jit import FIXED_OPTIONS

    check_options(component.inductor)
    known = config.get_config_copy()
    options = {n: v for n, v in {**component.inductor, **FIXED_OPTIONS}.items() if n in known}
    return CompileSettings(dynamic=dynamic, options=options)
