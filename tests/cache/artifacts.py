"""Artifacts for the tests: real files and zips, with a few bytes in the place of the library."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aotbuild.cache.backend import AOT, INDUCTOR_CACHE, CompileSettings
from aotbuild.cache.bundle import BUNDLE
from aotbuild.cache.files import FileRecord, Packed, Parameter, weights_part
from aotbuild.cache.key import PART_NAMES, key_of, make_parts
from aotbuild.cache.manifest import Constant, Manifest, ModuleIdentity
from aotbuild.cache.signature import Signature, TensorSpec
from aotbuild.canonical import digest
from aotbuild.target import Target

STEM = "package/data/aotinductor/model/cabc.wrapper"
LIBRARY = b"\x7fELF" + bytes(range(256)) * 8

CPU = Target(
    device="cpu",
    arch="x86-64-v3",
    system="linux",
    processor="x86_64",
    torch="2.13.0+cpu",
    glibc="2.28",
    glibcxx="3.4.22",
)
GPU = Target(
    device="cuda",
    arch="sm_80",
    system="linux",
    processor="x86_64",
    torch="2.13.0+cu130",
    cuda="13.0",
    triton="3.6.0",
    glibc="2.28",
    glibcxx="3.4.22",
    shared_memory_bytes=65536,
)
CACHES = {"inductor/fxgraph/ab/fab/cde": b"a graph", "inductor/2x/c2x.main.so": b"\x7fELF"}
CONFIG: dict[str, Any] = {"act_fn": "silu", "block_out_channels": [32, 64], "sample_size": 8}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def spec(path: str, *shape: int | str, dtype: str = "float32", **others: Any) -> TensorSpec:
    return TensorSpec(path=path, shape=shape, dtype=dtype, stride=None, device="cpu", **others)


def exact_signature() -> Signature:
    return Signature(
        inputs=(spec("sample", 2, 4, 8, 8), spec("timestep", 2, rule="timestep/1")),
        static=(("", {"dict": ["return_dict", "sample", "timestep"]}), ("return_dict", False)),
        outputs=(spec("0", 2, 4, 8, 8),),
        returns=(("", {"tuple": 1}),),
    )


def dynamic_signature() -> Signature:
    return Signature(
        inputs=(spec("sample", 2, 4, "8*h", "8*w"),),
        static=(("", {"dict": ["sample"]}),),
        outputs=(spec("", 2, 4, "8*h", "8*w"),),
        symbols=(("h", 1, 4), ("w", 1, 4)),
    )


def identity(**changes: Any) -> ModuleIdentity:
    config = {**CONFIG, **changes.pop("config", {})}
    fields = {"class_name": "UNet2DConditionModel", "source_sha256": "5" * 64, **changes}
    return ModuleIdentity(config=config, config_sha256=digest(config), **fields)


def members(library: bytes = LIBRARY) -> dict[str, bytes]:
    return {
        "package/archive_format": b"pt2",
        "package/archive_version": b"0",
        "package/byteorder": b"little",
        "package/.data/version": b"3\n",
        f"{STEM}.so": library,
        f"{STEM}_metadata.json": b'{"AOTI_DEVICE_KEY": "cpu"}',
    }


def write_zip(path: Path, contents: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), data)
    return path


def make_manifest(
    *, package: bytes = b"", library: bytes = LIBRARY, salt: str = "", **changes: Any
) -> Manifest:
    values = {name: {"of": name} for name in PART_NAMES} | {"versions": {"diffusers": "0.42.1"}}
    packed: Packed | None = changes.get("packed")
    weights = {"weights": weights_part(packed and packed.digest)}
    bundle = changes.get("backend") == INDUCTOR_CACHE
    settings = CompileSettings(dynamic=False, options={"salt": salt}).to_part()
    options = {"options": settings if bundle else {"salt": salt}}
    parts = make_parts(values | options | weights)
    fields: dict[str, Any] = {
        "format": 1,
        "key": key_of(parts),
        "backend": AOT,
        "parts": parts,
        "component": "unet",
        "method": "forward",
        "scope": "full",
        "precision": "float32",
        "module": identity(),
        "signature": exact_signature(),
        "state": {"training": False, "switches": {"use_tiling": False}},
        "constants": (
            Constant(
                name="conv_in_weight",
                rule="tensor/1",
                sources=("conv_in.weight",),
                shape=(32, 4, 3, 3),
                dtype="float32",
                stride=(36, 9, 3, 1),
            ),
            Constant(
                name="table",
                rule="stored/1",
                sources=(),
                shape=(2,),
                dtype="float32",
                stride=(1,),
                value=(0.5, -1.0),
            ),
        ),
        "target": CPU,
        "recipe": {"name": "tiny"},
        "package": FileRecord(name="package.pt2", sha256=sha256(package), bytes=len(package)),
        "library": FileRecord(name=f"{STEM}.so", sha256=sha256(library), bytes=len(library)),
        "packed": None,
        "checks": {"glibc": "2.28"},
        "provenance": {"across": False},
        "verification": (),
    }
    if bundle:
        fields |= {"library": None, "package": replace(fields["package"], name=BUNDLE)}
    return Manifest(**{**fields, **changes})


def make_packed(data: bytes, **changes: Any) -> Packed:
    file = FileRecord(name="constants.safetensors", sha256=sha256(data), bytes=len(data))
    parameter = Parameter(name="sample", required=True, default=None, read=True)
    fields = {"checkpoint": "org/model", "revision": "c" * 40, "digest": "2" * 64, **changes}
    return Packed(file=file, parameters=(parameter,), **fields)


def stage(
    root: Path,
    *,
    contents: Mapping[str, bytes] | None = None,
    library: bytes = LIBRARY,
    packed: bytes | None = None,
    **changes: Any,
) -> Path:
    """A whole artifact below `root`, where its manifest says it belongs; `packed` constants too."""
    if packed is not None:
        changes["packed"] = make_packed(packed)
    draft = make_manifest(library=library, **changes)
    folder = root / draft.folder
    folder.mkdir(parents=True)
    package = write_zip(folder / "package.pt2", members(library) if contents is None else contents)
    data = package.read_bytes()
    if packed is not None:
        (folder / "constants.safetensors").write_bytes(packed)
    record = replace(draft.package, sha256=sha256(data), bytes=len(data))
    (folder / "manifest.json").write_bytes(replace(draft, package=record).to_bytes())
    return folder


def stage_bundle(root: Path, files: Mapping[str, bytes] = CACHES, **changes: Any) -> Path:
    """A whole JIT-cache bundle below `root`; `files` by name in its archive."""
    draft = make_manifest(backend=INDUCTOR_CACHE, **changes)
    folder = root / draft.folder
    folder.mkdir(parents=True)
    data = write_zip(folder / BUNDLE, files).read_bytes()
    record = FileRecord(name=BUNDLE, sha256=sha256(data), bytes=len(data))
    (folder / "manifest.json").write_bytes(replace(draft, package=record).to_bytes())
    return folder


def record(key: str, target: Target = CPU, **changes: Any) -> dict[str, Any]:
    return {"passed": True, "key": key, "target": target.to_json(), **changes}
