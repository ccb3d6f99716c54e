"""`--pack-weights`: a checkpoint's weights as the constants that an artifact reads, in one file.

Which constants those are the plan says; how they lie in the file, `cache.packed_layout`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from aotbuild.cache.files import PACKED, FileRecord, Packed, Parameter
from aotbuild.cache.manifest import Constant
from aotbuild.cache.packed_layout import Place, layout_of, memory_order
from aotbuild.cache.weight_files import WeightFiles, find_weights, origin_of
from aotbuild.errors import BuildError, UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from aotbuild.build.calls import RecordedCall

_CHUNK_BYTES = 1 << 24
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the weights of one component come from, as a job holds it.

    Attributes:
        folder: the diffusers checkpoint's; in no key and no manifest.
        checkpoint: its Hub id. revision: the commit. Both None for a folder of one's own.
        digest: of the component's weight files, see `cache.weight_files`.
    """

    folder: str
    checkpoint: str | None
    revision: str | None
    digest: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object with every field."""
        return {
            "folder": self.folder,
            "checkpoint": self.checkpoint,
            "revision": self.revision,
            "digest": self.digest,
        }


def source_of(checkpoint: str | None, component: str) -> Source:
    """The weights of `component` in the folder `checkpoint`, every byte of them hashed.

    Raises:
        UsageError: it isn't a folder with weights for that component.
    """
    folder = check_checkpoint(checkpoint)
    files = find_weights(folder, component)
    repository, revision = origin_of(folder)
    return Source(
        folder=str(folder), checkpoint=repository, revision=revision, digest=files.digest()
    )


def check_checkpoint(checkpoint: str | None) -> Path:
    """The local folder that `--pack-weights` reads from.

    Raises:
        UsageError: none was named, or it isn't a local folder.
    """
    if checkpoint is None:
        raise UsageError(
            "--pack-weights needs to know whose weights: name a diffusers folder with "
            "--checkpoint FOLDER."
        )
    folder = Path(checkpoint).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(
            f"--pack-weights reads a local folder, and {checkpoint} is none. For a repository on "
            f"the Hub type `hf download {checkpoint}`, and give --checkpoint the folder it prints."
        )
    return folder


def pack(
    source: Source, recorded: RecordedCall, constants: tuple[Constant, ...], folder: Path
) -> Packed:
    """Write `constants.safetensors` into `folder`: the same bytes for the same weights and plan.

    Takes the memory of the weights in the pipeline's precision, and that of one constant.

    Raises:
        BuildError: weights that don't fit the module, or that changed meanwhile.
    """
    files = find_weights(Path(source.folder), recorded.component)
    module = recorded.cast(_load(files, recorded))
    record = write_constants(module, constants, folder)
    (folder / PACKED).chmod(0o444)  # it is mapped while it serves
    if files.digest() != source.digest:
        raise BuildError(f"The weights in {files.folder} changed meanwhile. Run the command again.")
    return Packed(
        file=record,
        parameters=parameters_of(type(module), recorded.method),
        checkpoint=source.checkpoint,
        revision=source.revision,
        digest=source.digest,
    )


def write_constants(module: nn.Module, constants: tuple[Constant, ...], folder: Path) -> FileRecord:
    """Write the constants that the plan makes of `module`'s tensors, one in memory at a time.

    Raises:
        BuildError: the module isn't one that the plan is for, or a constant can't be packed.
    """
    try:
        layout = layout_of(constants)
    except ValueError as e:
        raise BuildError(f"{type(module).__name__} can't be packed: {e}.") from e
    with (folder / PACKED).open("xb") as file:
        writer = _Writer(file)
        writer.write(layout.head)
        for place, tensor in _made(module, layout.places):
            writer.fill(place.begin)
            writer.write(_bytes(place.constant, tensor))
        writer.fill(layout.bytes)
    return FileRecord(name=PACKED, sha256=writer.sha256.hexdigest(), bytes=layout.bytes)


def parameters_of(cls: type, method: str) -> tuple[Parameter, ...]:
    """The parameters of `cls.method`, for stand-ins; a default that isn't plain must be given."""
    from aotbuild.loaders.signature import method_of, reads

    found = method_of(cls, method)
    plain = {n: d for n, d in found.defaults.items() if isinstance(d, _PLAIN)}
    return tuple(
        Parameter(
            name=name,
            required=name not in plain,
            default=plain.get(name),
            read=reads(found.function, name),
        )
        for name in found.empty
    )


def _load(files: WeightFiles, recorded: RecordedCall) -> nn.Module:
    """The component as `from_pretrained` loads it, every parameter from the files."""
    import torch

    from aotbuild.build.modules import model_class, quiet

    cls: Any = model_class(recorded.config)
    try:
        with quiet():
            module, info = cls.from_pretrained(
                str(files.folder),
                torch_dtype=getattr(torch, recorded.precision),
                variant=files.variant,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError) as e:
        raise BuildError(f"{recorded.component}: {files.folder} can't be loaded: {e}") from e
    odd = sorted(info["missing_keys"]) or sorted(map(str, info["mismatched_keys"]))
    if odd:
        raise BuildError(
            f"{files.folder} has no weights of the right shape for {odd[0]} ({len(odd)} such): "
            "its files and its config.json aren't of one checkpoint."
        )
    return module.eval()  # type: ignore[no-any-return]


def _made(module: nn.Module, places: tuple[Place, ...]) -> Iterator[tuple[Place, torch.Tensor]]:
    """Each constant, made when it is asked for; int8 data and scales of one weight together."""
    from aotbuild.build.constants import source_tensor
    from aotbuild.loaders.rules import INT8_ROWS, int8_rows, make, pick

    quantized: Mapping[tuple[str, ...], tuple[torch.Tensor, torch.Tensor]] = {}
    for place in places:
        constant = place.constant
        found = [source_tensor(module, s) for s in constant.sources]
        sources = [t.detach() for t in found if t is not None]
        if len(sources) != len(found):
            raise BuildError(f"Constant {constant.name}: the module lacks {constant.sources}.")
        if constant.rule == INT8_ROWS:
            if constant.sources not in quantized:
                quantized = {constant.sources: int8_rows(sources)}
            yield place, pick(constant, quantized[constant.sources])
        else:
            yield place, make(constant, sources)


def _bytes(constant: Constant, tensor: torch.Tensor) -> memoryview:
    """The tensor's elements in the order of the constant's memory.

    Raises:
        BuildError: it isn't what the plan says.
    """
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if (tuple(tensor.shape), dtype) != (constant.shape, constant.dtype):
        raise BuildError(
            f"Constant {constant.name} came out as {dtype} {tuple(tensor.shape)}; the plan says "
            f"{constant.dtype} {constant.shape}."
        )
    ordered = tensor.permute(memory_order(constant)).contiguous()
    return memoryview(ordered.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


class _Writer:
    """Hashes what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._write: Callable[[Any], Any] = file.write
        self._at = 0
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        view = memoryview(data)
        for begin in range(0, len(view), _CHUNK_BYTES):
            chunk = view[begin : begin + _CHUNK_BYTES]
            self._write(chunk)
            self.sha256.update(chunk)
        self._at += len(view)

    def fill(self, end: int) -> None:
        """Zeros up to the offset `end`."""
        self.write(bytes(end - self._at))
