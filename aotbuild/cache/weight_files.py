"""The weight files of one component in a diffusers folder, and their digest. Reads no tensor."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from aotbuild.canonical import digest, parse_json
from aotbuild.errors import UsageError

_FILE = re.compile(r"diffusion_pytorch_model(?:\.([\w-]+))?\.safetensors")
_INDEX = re.compile(r"diffusion_pytorch_model\.safetensors\.index(?:\.([\w-]+))?\.json")
_SHARD = re.compile(r".*-\d{5}-of-\d{5}(?:\..*)?\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """What `from_pretrained` would read.

    Attributes:
        folder: the component's, below a checkpoint's.
        names: the weight files in it, sorted; several where they are sharded.
        variant: "fp16" and the like where the files are of one; None for the plain ones.
    """

    folder: Path
    names: tuple[str, ...]
    variant: str | None

    def digest(self) -> str:
        """Hex sha256 over the sorted (name, sha256) pairs; hashes every byte of the files.

        Raises:
            UsageError: a file that can't be read.
        """
        try:
            return digest([[name, _sha256(self.folder / name)] for name in self.names])
        except OSError as e:
            raise UsageError(f"{self.folder}: a weight file can't be read: {e}.") from e


def find_weights(checkpoint: Path, component: str) -> WeightFiles:
    """The weight files of `component` in the diffusers folder `checkpoint`.

    The plain ones where there are such, else those of the one variant there is.

    Raises:
        UsageError: there are none, or several variants, or only pickles.
    """
    folder = checkpoint / component
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    found: dict[str | None, tuple[str, ...]] = {}
    for name in names:
        if (single := _FILE.fullmatch(name)) and not _SHARD.fullmatch(name):
            found.setdefault(single[1], (name,))
    for name in names:  # an index counts more than a file, as in diffusers
        if index := _INDEX.fullmatch(name):
            found[index[1]] = _shards(folder / name)
    if None not in found and len(found) > 1:
        variants = ", ".join(sorted(v for v in found if v))
        raise UsageError(
            f"{folder} holds weights of several variants, {variants}, and none without one. Keep "
            "one, or save the pipeline anew with save_pretrained."
        )
    if not found:
        raise UsageError(_nothing(folder, names))
    variant = None if None in found else next(iter(found))
    return WeightFiles(folder=folder, names=found[variant], variant=variant)


def origin_of(checkpoint: Path) -> tuple[str | None, str | None]:
    """(Hub id, commit) of a folder in the Hub's cache; (None, None) of any other.

    Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache, whose folders are
    models--ORGANISATION--NAME/snapshots/COMMIT.
    """
    snapshots = checkpoint.absolute().parent
    kind, *names = snapshots.parent.name.split("--")
    if snapshots.name == "snapshots" and kind == "models" and names:
        return "/".join(names), checkpoint.absolute().name
    return None, None


def _shards(index: Path) -> tuple[str, ...]:
    try:
        names = tuple(sorted(set(parse_json(index.read_bytes())["weight_map"].values())))
        if not names:
            raise ValueError("it names no file")
        if not all(isinstance(n, str) and n == Path(n).name and _is_file(index, n) for n in names):
            raise ValueError("it names a file that isn't beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(
            f"{index} isn't an index of weight files: {e}. Download the checkpoint again."
        ) from e
    return names


def _is_file(index: Path, name: str) -> bool:
    return name.endswith(".safetensors") and (index.parent / name).is_file()


def _nothing(folder: Path, names: list[str]) -> str:
    pickles = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        return (
            f"{folder} holds its weights as a pickle, {pickles[0]}, which may run code when read. "
            "Convert it with save_pretrained(..., safe_serialization=True)."
        )
    return (
        f"{folder} holds no diffusion_pytorch_model.safetensors, whole or sharded. --pack-weights "
        "needs the weights: name a whole diffusers checkpoint with --checkpoint FOLDER."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
