"""The ladder climbed: a fresh process for each rung, a row and a picture of it; `report` shows."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aotbuild.bench.facts import facts
from aotbuild.bench.ladder.rows import FAILED, NO_MEMORY, SKIPPED, Row, read_finished, write_row
from aotbuild.bench.ladder.rungs import AOT, RUNGS, Rung, skip_reason
from aotbuild.bench.ladder.worker import Job
from aotbuild.bench.picture import difference
from aotbuild.bench.process import DiedError, raised, run_module
from aotbuild.build.request import BuildRequest, Event
from aotbuild.errors import AotbuildError, BuildError
from aotbuild.recipe import Recipe, recipe_configs

Say = Callable[[str], None]
REFERENCE = "fp32"
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one ladder is of; a finished rung counts for another run of the same settings alone.

    Attributes:
        recipe: with the resolution and the batch, its precision the rungs' own.
        device: "cpu" or "cuda".
        steps: denoising steps of an image. images: how many are timed after the first.
        checkpoint: a diffusers folder or Hub id; None for random weights.
    """

    recipe: Recipe
    device: str
    steps: int
    images: int
    checkpoint: str | None = None

    @property
    def folder(self) -> str:
        """The name of the folder of its files."""
        call = self.recipe.call
        return f"{self.recipe.name}-{call.resolution}-b{call.batch}"


def climb(
    settings: Settings,
    names: tuple[str, ...],
    *,
    out: Path,
    store: Path,
    resume: bool,
    on_event: Callable[[Event], None],
    say: Say,
) -> Iterator[Row]:
    """Climb the rungs `names` in the ladder's order, each written before the next begins.

    With `resume` what is finished in `out` isn't run again.
    """
    folder = out / settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    known = facts(settings.device)
    configs = recipe_configs(settings.recipe)
    wanted = [rung for rung in RUNGS if rung.name in names]
    spent: list[float] = []
    for number, rung in enumerate(wanted, 1):
        empty = _empty(settings, rung)
        path = folder / f"{rung.name}.csv"
        if resume and (before := read_finished(path, empty, known)) is not None:
            say(f"{number} of {len(wanted)}: {rung.name} is finished")
            yield before
            continue
        if reason := skip_reason(rung, settings.recipe, settings.device, configs):
            say(f"{number} of {len(wanted)}: {rung.name} is skipped: {reason}")
            row = replace(empty, status=SKIPPED, reason=reason)
        else:
            say(f"{number} of {len(wanted)}: {rung.title}{_left(spent, len(wanted) - number + 1)}")
            begun = time.monotonic()
            row = _climbed(settings, rung, empty, folder, store, on_event)
            spent.append(time.monotonic() - begun)
        write_row(path, row, known)
        yield row


def _empty(settings: Settings, rung: Rung) -> Row:
    recipe = settings.recipe
    return Row(
        recipe=recipe.name,
        resolution=recipe.call.resolution,
        batch=recipe.call.batch,
        checkpoint=settings.checkpoint or "random weights",
        device=settings.device,
        steps=settings.steps,
        images=settings.images,
        rung=rung.name,
        title=rung.title,
    )


def _left(spent: list[float], rungs: int) -> str:
    """What is left at the pace so far; nothing before the first rung has ended."""
    if not spent:
        return ""
    return f" (about {statistics.mean(spent) * rungs / 60:.0f} min left)"


def _climbed(
    settings: Settings,
    rung: Rung,
    empty: Row,
    folder: Path,
    store: Path,
    on_event: Callable[[Event], None],
) -> Row:
    """The rung's row, whatever becomes of it."""
    recipe = settings.recipe.override(dtype=rung.dtype, quantization=rung.quantization)
    pixels = folder / f"{rung.name}.png"
    job = Job(
        recipe=recipe.to_json(),
        rung=rung.name,
        device=settings.device,
        steps=settings.steps,
        images=settings.images,
        checkpoint=settings.checkpoint,
        store=str(store),
        jpeg=str(folder / f"{rung.name}.jpg"),
        pixels=str(pixels),
    )
    try:
        if rung.way == AOT:
            _build(recipe, settings.device, store, on_event)
        with tempfile.TemporaryDirectory(prefix="aotbuild-ladder-") as cache:
            document, module = asdict(job), "aotbuild.bench.ladder.worker"
            found = run_module(module, document, cache=Path(cache), what=f"rung {rung.name}")
    except DiedError as e:
        log = folder / f"{rung.name}.log"
        log.write_text(e.printed, encoding="utf-8")
        reason = f"{raised(e.printed)[:_LONGEST_REASON]} ({log.name} has all of it)"
        return failed_row(empty, e, reason)
    except AotbuildError as e:
        return failed_row(empty, e, raised(str(e))[:_LONGEST_REASON])
    if "status" in found:
        return replace(empty, **found)
    later: list[float] = found.pop("latencies_s")
    latency = statistics.median(later)
    row = replace(
        empty,
        **found,
        first_image_s=sum(found[n] for n in ("import_s", "weights_s", "ready_s", "first_s")),
        latency_s=latency,
        latency_spread_s=max(later) - min(later),
        iterations_per_second=settings.steps / latency,
    )
    return _compared(row, pixels, folder / f"{REFERENCE}.png")


def failed_row(empty: Row, error: AotbuildError, reason: str) -> Row:
    """Of a process that the system killed it is the memory that wasn't enough."""
    killed = isinstance(error, BuildError) and "exit code -9" in str(error)
    return replace(empty, status=NO_MEMORY if killed else FAILED, reason=reason)


def _build(recipe: Recipe, device: str, store: Path, on_event: Callable[[Event], None]) -> None:
    """The artifacts of the recipe's own call for this machine, where the store lacks them."""
    from aotbuild.build import run

    request = BuildRequest(
        recipe=recipe,
        gpu="cpu" if device == "cpu" else "auto",
        resolutions=(recipe.call.resolution,),
        batches=(recipe.call.batch,),
        store=store,
    )
    run.build(request, on_event)


def _compared(row: Row, pixels: Path, reference: Path) -> Row:
    """The row with how far its picture is from the fp32 rung's, where there is that."""
    from PIL import Image

    if not reference.exists():
        return row
    with Image.open(pixels) as mine, Image.open(reference) as theirs:
        if mine.size != theirs.size:
            return row
        apart = difference(mine, theirs)
    return replace(row, largest_difference=apart.largest, mean_difference=apart.mean)
