"""Tuning tables: which configuration of each kernel was fastest on the real GPU, kept as data.

`aotbuild build --tune` measures on the GPU that is there and writes one; every later build for that
architecture, anywhere, takes its choices and is reproducible all the same. Measures nothing itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aotbuild.build.kernels import Config, KernelStats, record_of
from aotbuild.canonical import check_format, checked_fields, parse_json
from aotbuild.errors import RecipeError

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTable:
    """Measured choices for one GPU architecture.

    Attributes:
        format: version of the file.
        arch: "sm_80".
        gpu: what the driver calls the GPU that was measured.
        torch: the full version whose kernels were measured.
        choices: `KernelRecord.digest` -> its configuration.
    """

    format: int
    arch: str
    gpu: str
    torch: str
    choices: dict[str, Config]

    def __post_init__(self) -> None:
        check_format(self.format, FORMAT)

    def merged(self, other: TuningTable | None) -> TuningTable:
        """This table with what `other` has besides."""
        older = other.choices if other is not None else {}
        return TuningTable(**{**asdict(self), "choices": {**older, **self.choices}})


def table_path(recipe_path: Path | None, store: Path, name: str, arch: str) -> Path:
    """Where a recipe's table for an architecture lies: beside its TOML file, else in the store."""
    if recipe_path is not None:
        return recipe_path.with_name(f"{recipe_path.stem}.{arch}.tuning.json")
    return store / "tuning" / f"{name}.{arch}.tuning.json"


def read_table(path: Path) -> TuningTable | None:
    """The table at `path`; None where there is none.

    Raises:
        RecipeError: it is there, and can't be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return TuningTable(**checked_fields(TuningTable, parse_json(text), "tuning table"))
    except (ValueError, TypeError) as e:
        raise RecipeError(f"{path} isn't a tuning table: {e}. Measure again with --tune.") from e


def write_table(path: Path, table: TuningTable) -> None:
    """Write the table at `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(table), indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


@contextlib.contextmanager
def recorded_choices() -> Iterator[KernelStats]:
    """Keep the configuration of each kernel that Inductor saves for a package.

    For a build on the real GPU, where Inductor measures. Hooks
    `CachingAutotuner.save_gpu_kernel`, which is called once per kernel with the launcher chosen;
    read in torch 2.11.0 and 2.14.1, run on neither with a GPU.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    stats, name = KernelStats(), "save_gpu_kernel"
    stock: Callable[..., Any] = getattr(CachingAutotuner, name)

    def save(autotuner: Any, stream: Any, launcher: Any) -> Any:
        stats.kernels.append(record_of(autotuner, launcher))
        return stock(autotuner, stream, launcher)

    setattr(CachingAutotuner, name, save)
    try:
        yield stats
    finally:
        setattr(CachingAutotuner, name, stock)


def choices_of(checks: Mapping[str, Any]) -> dict[str, Config]:
    """The choices that a worker's checks hold."""
    found: dict[str, Config] = checks.get("choices", {})
    return found
