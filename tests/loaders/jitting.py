"""JIT-cache bundles of the loader's small network: compiled once, kept in pytest's own cache."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from aotbuild import probe
from aotbuild.build.bundle import collect
from aotbuild.cache.backend import INDUCTOR_CACHE, CompileSettings
from aotbuild.cache.bundle import BUNDLE
from aotbuild.cache.key import PART_NAMES, key_of, make_parts
from aotbuild.cache.manifest import Manifest
from aotbuild.cache.signature import Signature
from aotbuild.cache.store import Store
from aotbuild.loaders import code, jit
from aotbuild.loaders.state import identify, module_state

from . import making, nets

SETTINGS = CompileSettings(dynamic=False, options=jit.FIXED_OPTIONS)


@contextmanager
def caches(folder: Path) -> Iterator[None]:
    """This process's Inductor caches are `folder`, and nothing that was compiled is remembered."""
    names = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    before = {n: os.environ.get(n) for n in names}
    os.environ.update(names)
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def signature() -> Signature:
    return making.signature_of(
        nets.net(), "forward", nets.call(return_dict=False), {"timestep": "timestep/1"}
    )


def archive(compiled: Path, scratch: Path) -> Path:
    """The bundle's archive, of `nets.net` and `nets.call`."""
    text = Path(jit.__file__).read_bytes() + jit.compile_command().encode()
    out = compiled / f"jit-{hashlib.sha256(text).hexdigest()[:12]}.zip"
    if out.exists():
        return out
    call = nets.call(return_dict=False)
    with caches(scratch / "cache"):
        function = jit.compiled(SETTINGS, fullgraph=True)
        made = jit.JitCall(nets.net(), "forward", signature(), function)
        made([call[s.path] for s in signature().inputs])
    collect(scratch, scratch / BUNDLE)
    shutil.copy(scratch / BUNDLE, out)
    return out


def write_bundle(
    store: Store,
    archive: Path,
    *,
    verified: bool = True,
    change: Callable[[dict[str, Any]], None] = lambda fields: None,
) -> Manifest:
    """Put the bundle into `store`; `change` may edit the manifest's fields."""
    module, data = nets.net(), archive.read_bytes()
    named = [*module.named_parameters(), *module.named_buffers()]
    fields: dict[str, Any] = {
        "backend": INDUCTOR_CACHE,
        "component": "net",
        "method": "forward",
        "scope": "full",
        "precision": "float32",
        "module": identify(module),
        "signature": signature(),
        "state": module_state(module),
        "constants": tuple(making.constant(n, t) for n, t in named),
        "target": probe.this_machine("cpu"),
        "recipe": making.RECIPE,
        "package": making.file_record(BUNDLE, data),
        "library": None,
        "packed": None,
        "checks": {
            "fullgraph": True,
            "requires_grad": True,
            "cpu_flags": code.instruction_flags(),
            "command": jit.compile_command(),
            "device": None,
        },
        "provenance": {},
        "verification": (making.record(),) if verified else (),
    }
    change(fields)
    values: dict[str, Any] = {n: repr(fields["checks"]) for n in PART_NAMES}
    parts = make_parts({**values, "options": SETTINGS.to_part(), "weights": None})
    key = key_of(parts)
    fields["verification"] = tuple({**r, "key": key} for r in fields["verification"])
    manifest = Manifest(format=1, key=key, parts=parts, **fields)
    with store.staging() as staging:
        folder = staging / manifest.folder
        folder.mkdir(parents=True)
        (folder / BUNDLE).write_bytes(data)
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
        store.add(folder)
    return manifest
