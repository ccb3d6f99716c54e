"""`bench coverage`: rehearse and build recipes for targets, and write down what each took.

The rows are `coverage_row`'s, the files `coverage_table`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aotbuild.bench.coverage_row import Asked, Row, built_row, failed_row, planned_row
from aotbuild.bench.coverage_table import Table, read_table, write_table
from aotbuild.bench.facts import facts
from aotbuild.build.request import BuildRequest, Event, Planned
from aotbuild.cache.store import Store
from aotbuild.errors import BuildError, TargetError
from aotbuild.recipe import Recipe
from aotbuild.target import Target

log = logging.getLogger(__name__)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run is of.

    Attributes:
        recipes: with what the command line changed.
        gpus: as `--gpu` names them.
        scope: "full" or "regional".
        store: its root.
        out: folder of the table.
        verify: compare with eager what this machine can run.
    """

    recipes: tuple[Recipe, ...]
    gpus: tuple[str, ...]
    scope: str
    store: Path
    out: Path
    verify: bool

    def request(self, recipe: Recipe, gpu: str) -> BuildRequest:
        """What `aotbuild build` would be asked for."""
        return BuildRequest(
            recipe=recipe,
            gpu=gpu,
            resolutions=(recipe.call.resolution,),
            batches=(recipe.call.batch,),
            scope=self.scope,
            store=self.store,
            verify=self.verify,
        )


def measure(plan: Plan, *, on_event: Callable[[Event], None], say: Say) -> list[Row]:
    """Build what `plan` names, and write the table after each artifact.

    A recipe or an artifact that fails is a row with its error, and the rest goes on. What the store
    has isn't built again; what its build took is known if the table knows it.

    Returns:
        This run's rows; the files have those of earlier runs too.

    Raises:
        TargetError: a target that no recipe can be built for here.
        UsageError: a file of the table's name that isn't one.
    """
    targets = {gpu: _targets(plan, gpu) for gpu in plan.gpus}
    coverage = _Coverage(plan, read_table(plan.out), on_event)
    jobs = [(recipe, gpu) for gpu in plan.gpus for recipe in plan.recipes]
    for number, (recipe, gpu) in enumerate(jobs, 1):
        say(f"{number} of {len(jobs)}: {recipe.name} for {gpu}")
        coverage.cover(recipe, gpu, targets[gpu])
    return coverage.rows


def _targets(plan: Plan, gpu: str) -> Target:
    """The target that `gpu` names; what a single recipe can't do there is that recipe's failure."""
    from aotbuild.build.targets import target_for

    failures: list[TargetError | BuildError] = []
    for recipe in plan.recipes:
        try:
            return target_for(gpu, recipe)
        except (TargetError, BuildError) as e:
            failures.append(e)
    raise failures[0]


class _Coverage:
    """One run: the table as it grows, and the rows that are this run's."""

    def __init__(self, plan: Plan, table: Table, on_event: Callable[[Event], None]) -> None:
        self.rows: list[Row] = []
        self._plan, self._table, self._on_event = plan, table, on_event
        self._store, self._facts = Store(plan.store), facts()

    def cover(self, recipe: Recipe, gpu: str, target: Target) -> None:
        """One recipe for one target, artifact by artifact."""
        from aotbuild.build import run

        asked = Asked.of(recipe, target.arch, target.device, self._plan.scope)
        request = self._plan.request(recipe, gpu)
        try:
            planned = run.plan(request, self._on_event)
        except Exception as e:
            self._fail(asked.row(), e, keys=())
            return
        self._table = self._table.keep(asked, [p.key for p in planned])
        for one in planned:
            self._build(asked, one, request)

    def _build(self, asked: Asked, planned: Planned, request: BuildRequest) -> None:
        from aotbuild.build import run

        row = planned_row(asked, planned)
        try:
            built = run.ensure(self._store, planned, request, self._on_event)
            entry = self._store.find(built.key)
            records = self._store.verifications(entry)
            row = built_row(row, built, entry.manifest, records, self._facts)
        except Exception as e:
            self._fail(row, e)
            return
        self._put(row.measured_as(self._table.measured(row.key)))

    def _fail(self, row: Row, error: Exception, keys: tuple[str, ...] | None = None) -> None:
        """Any error: one model that nobody foresaw mustn't cost the others' rows."""
        log.debug("%s failed", row.asked, exc_info=error)
        if keys is not None:
            self._table = self._table.keep(row.asked, keys)
        self._put(failed_row(row, error))

    def _put(self, row: Row) -> None:
        self.rows.append(row)
        self._table = self._table.put(row)
        write_table(self._plan.out, self._table)
