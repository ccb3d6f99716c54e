"""Artifacts of real compiled code for the loader's tests, written without the build."""

from __future__ import annotations

import copy
import hashlib
import tempfile
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aotbuild import probe
from aotbuild.build.pack import parameters_of, write_constants
from aotbuild.cache.backend import AOT
from aotbuild.cache.files import FileRecord, Packed, weights_part
from aotbuild.cache.key import PART_NAMES, key_of, make_parts
from aotbuild.cache.manifest import Constant, Manifest
from aotbuild.cache.signature import Signature, TensorSpec, flatten
from aotbuild.cache.store import Store
from aotbuild.loaders.signature import normalise
from aotbuild.loaders.state import identify, module_state
from aotbuild.target import Target

OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,
    "joint_graph_constant_folding": False,
    "cpp.dynamic_threads": True,
}
RECIPE = {"name": "tiny", "dtype": "fp32", "call": {"resolution": "128x128", "batch": 1}}


def compile_call(
    module: nn.Module, method: str, call: dict[str, Any], out: Path, dynamic: Any = None
) -> None:
    """Export `module.method` for `call` and compile it; `out` then holds the bare package."""
    if out.exists():
        return
    subject = copy.deepcopy(module)
    if method != "forward":
        vars(subject)["forward"] = types.MethodType(getattr(type(subject), method), subject)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(subject, (), call, dynamic_shapes=dynamic, strict=False)
        raw = out.with_suffix(".raw.pt2")
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(raw), inductor_configs=OPTIONS
        )
    with zipfile.ZipFile(raw) as archive, zipfile.ZipFile(out, "w") as bare:
        for name in archive.namelist():
            if not name.endswith(".cpp"):
                bare.writestr(name, archive.read(name))
    raw.unlink()


def spec(path: str, tensor: Tensor, rule: str | None = None) -> TensorSpec:
    return TensorSpec(
        path=path,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=tuple(tensor.stride()),
        device=tensor.device.type,
        rule=rule,
    )


def signature_of(
    module: nn.Module, method: str, call: dict[str, Any], rules: dict[str, str]
) -> Signature:
    found = list(flatten(normalise(module, method, (), call)))
    with torch.no_grad():
        answer = list(flatten(getattr(module, method)(**call)))
    return Signature(
        inputs=tuple(spec(p, v, rules.get(p)) for p, v in call.items() if torch.is_tensor(v)),
        static=tuple(sorted((p, v) for p, v in found if not torch.is_tensor(v))),
        outputs=tuple(spec(p, v) for p, v in answer if torch.is_tensor(v)),
        returns=tuple(sorted((p, v) for p, v in answer if not torch.is_tensor(v))),
    )


def constant(
    name: str, tensor: Tensor, rule: str = "tensor/1", sources: tuple[str, ...] = ()
) -> Constant:
    return Constant(
        name=name,
        rule=rule,
        sources=sources or (name,),
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        stride=tuple(tensor.stride()),
    )


def file_record(name: str, data: bytes) -> FileRecord:
    return FileRecord(name=name, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def machine() -> Target:
    return probe.this_machine("cpu")


def record() -> dict[str, Any]:
    target = machine()
    return {"passed": True, "target": target.to_json()}


def packed_bytes(module: nn.Module, constants: tuple[Constant, ...]) -> bytes:
    """The file that a build packs for `module`."""
    with tempfile.TemporaryDirectory() as folder:
        record = write_constants(module, constants, Path(folder))
        return (Path(folder) / record.name).read_bytes()


def write_artifact(
    store: Store,
    module: nn.Module,
    package: Path,
    signature: Signature,
    constants: tuple[Constant, ...],
    *,
    component: str = "net",
    method: str = "forward",
    verified: bool = True,
    pack: nn.Module | None = None,
    origin: dict[str, Any] | None = None,
    spoil: Callable[[bytes], bytes] = bytes,
    change: Callable[[dict[str, Any]], None] = lambda fields: None,
) -> Manifest:
    """Put an artifact of `package` into `store`; `change` may edit the manifest's fields.

    `pack` is a module whose weights are packed, `origin` what the manifest says of them; `spoil`
    may change the packed bytes before they are recorded.
    """
    data = package.read_bytes()
    with zipfile.ZipFile(package) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".so"))
        library = archive.read(name)
    fields: dict[str, Any] = {
        "backend": AOT,
        "component": component,
        "method": method,
        "scope": "full",
        "precision": "float32",
        "module": identify(module),
        "signature": signature,
        "state": module_state(module),
        "constants": constants,
        "target": machine(),
        "recipe": RECIPE,
        "package": file_record("package.pt2", data),
        "library": file_record(name, library),
        "packed": None,
        "checks": {},
        "provenance": {},
        "verification": (record(),) if verified else (),
    }
    constants_file = b""
    if pack is not None:
        constants_file = spoil(packed_bytes(pack, constants))
        fields["packed"] = Packed(
            file=file_record("constants.safetensors", constants_file),
            parameters=parameters_of(type(module), method),
            **({"checkpoint": None, "revision": None, "digest": "1" * 64} | (origin or {})),
        )
    change(fields)
    salt = repr(fields["signature"]) + repr(fields["state"]) + repr(fields["verification"])
    weights = weights_part(fields["packed"] and fields["packed"].digest)
    parts = make_parts(
        {n: salt + repr(fields["constants"]) for n in PART_NAMES} | {"weights": weights}
    )
    key = key_of(parts)
    fields["verification"] = tuple({**r, "key": key} for r in fields["verification"])
    manifest = Manifest(format=1, key=key, parts=parts, **fields)
    with store.staging() as staging:
        folder = staging / manifest.folder
        folder.mkdir(parents=True)
        (folder / "package.pt2").write_bytes(data)
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
        if pack is not None:
            (folder / "constants.safetensors").write_bytes(constants_file)
        store.add(folder)
    return manifest
