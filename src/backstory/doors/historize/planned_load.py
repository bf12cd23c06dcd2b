"""A load of a warehouse that nothing speaks against, wherever it was planned, and its two commits."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from backstory.doors.historize.collisions import warn_of_collisions
from backstory.doors.historize.load_refusals import keys_of
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep
from backstory.doors.historize.spark_runs import NEWEST
from backstory.doors.historize.spark_tables import base_shape
from backstory.doors.historize.spark_work import BASE as BASE_SNAPSHOT
from backstory.doors.historize.spark_work import RECEIPT, SparkWork
from backstory.model.change import NOTHING, Change
from backstory.model.instant import iso
from backstory.stores.iceberg.store import StoredTable, existing
from backstory.strategies.scd2.parts import (
    APPEARED,
    CHANGED,
    DELETED,
    INTERRUPTED,
    SEEN,
    UNSEEN,
    Compared,
    LoadPart,
    compared_of,
)
from backstory.strategies.scd2.plan import tally
from backstory.strategies.scd2.terms import BASE, OPEN
from backstory.strategies.scd2.transitions import State


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The counts of all parts of a load together, and what it makes of base and history."""

    sums: LoadPart
    base: Callable[[StoredTable], Change]
    history: Callable[[StoredTable], Change]


@dataclass(frozen=True, slots=True)
class PlannedBase:
    """A base load: its steps, and what it makes of the table.

    `nothing` says that the base is the stage's already; `counts` are its rows by what becomes of them.
    """

    steps: Sequence[LoadStep]
    nothing: bool
    counts: Mapping[str, int]
    change: Callable[[StoredTable], Change]

    def commit(self, work: SparkWork, table: StoredTable) -> None:
        """Write what changes, in one commit; none if nothing does."""
        change = None if self.nothing else replace(self.change(table), counts=self.counts)
        work.commit(table, change, work.note())


@dataclass(frozen=True, slots=True)
class PlannedHistory:
    """A history load, and what it makes of the table.

    `nothing` says that the history tells of the base already; `newest` is the latest instant that it knows.
    """

    outcome: LoadOutcome
    nothing: bool
    newest: datetime | None
    change: Callable[[StoredTable], Change]

    def commit(
        self,
        work: SparkWork,
        table: StoredTable,
        finished: Callable[[LoadOutcome], HistoryReceipt],
        properties: Mapping[str, None] = NOTHING,
    ) -> LoadOutcome:
        """Write what changes, in one commit that carries the receipt; none if nothing does.

        `properties` of the table change in the same commit.
        """
        outcome = self.outcome
        if self.nothing:
            return outcome
        newest = max(filter(None, (self.newest, work.run.instant)))
        more = {RECEIPT: json.dumps(finished(outcome).to_dict()), NEWEST: iso(newest)}
        made_from = existing(work.store, base_shape(work.load).table).iceberg.currentSnapshot()
        if made_from is not None and not work.run.skip_base:  # who made a base may make it anew
            more[BASE_SNAPSHOT] = str(made_from.snapshotId())
        change = replace(self.change(table), counts=outcome.counts, properties=properties)
        built = work.commit(table, change, work.note(**more))
        return replace(outcome, version=str(built and built.snapshot_id))


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Base and history of a load; no base where it is taken as it stands."""

    base: PlannedBase | None
    history: PlannedHistory


def planned_load(
    work: SparkWork, rows: PlannedRows, loaded: LoadOutcome, newest: datetime | None, began: float
) -> PlannedLoad:
    """The load of planned rows; `loaded` is what it did before, `began` the second at which planning did."""
    counts, base = rows.sums.counts, None
    took = round((time.monotonic() - began) * 1000)
    if not work.run.skip_base:
        unseen = {name.removeprefix(UNSEEN): n for name, n in counts.items() if name.startswith(UNSEEN)}
        warn_of_collisions(work.load, unseen)
        base = _base(compared_of(BASE, counts), rows.base, took)
        written = sum(step.rows for step in base.steps)
        loaded = replace(loaded, steps=[*loaded.steps, *base.steps], changed_base=written)
    compared = compared_of(OPEN, counts)
    cases = tally(compared.sizes, counts.get(SEEN, 0), counts.get(INTERRUPTED, 0))
    steps = [LoadStep(name, count) for name, count in cases.rows.items()]
    steps.append(LoadStep("merge", sum(cases.rows.values()), took))
    outcome = replace(loaded, counts=cases.counts, steps=[*loaded.steps, *steps], base=compared.delivered)
    if work.run.dry_run:
        kinds = {State.NEW: APPEARED, State.CHANGED: CHANGED, State.DELETED: DELETED}
        outcome = replace(
            outcome, keys={str(state): keys_of(rows.sums, each) for state, each in kinds.items()}
        )
    return PlannedLoad(base, PlannedHistory(outcome, compared.nothing, newest, rows.history))


def _base(compared: Compared, change: Callable[[StoredTable], Change], took: int) -> PlannedBase:
    appeared, changed, vanished, *_ = compared.sizes
    steps = [
        LoadStep("base_delete", vanished),
        LoadStep("base_replace", changed),
        LoadStep("base_insert", appeared + changed, took),
    ]
    counts = {"inserted": appeared, "changed": changed, "deleted": vanished}
    return PlannedBase(steps, compared.nothing, counts, change)
