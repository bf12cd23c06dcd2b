"""The plan of a load into a warehouse: counts, the rows of base and history, and the two commits."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from backstory.doors.historize.load_sides import (
    ROWS_ALIAS,
    compute_locally,
    earlier_versions,
    ids_of,
    load_sides,
    load_sift,
    load_terms,
    read_earlier,
    side_schema,
)
from backstory.doors.historize.preflight import refuse_faults, refuse_late, warn_of_collisions
from backstory.doors.historize.receipts import LoadOutcome, LoadStep, milliseconds_since
from backstory.doors.historize.spark_runs import NEWEST
from backstory.doors.historize.spark_tables import BASE as BASE_SNAPSHOT
from backstory.doors.historize.spark_tables import (
    RECEIPT,
    SparkWork,
    TablePlan,
    base_shape,
    snapshot_of,
)
from backstory.engine.plans import PlanResult, PlanTerms, RowsToWrite, Side, join_rows, tables_of
from backstory.engine.runner import run_plan
from backstory.engine.tasks import plan_in_tasks
from backstory.formats.delivered import in_schema
from backstory.model.change import NOTHING, Change, RowBatches
from backstory.model.instant import iso
from backstory.model.layout import ROW_HASH
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.sessions import announce_later
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.sql.dialects import DuckDB
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2 import plan as scd2
from backstory.strategies.scd2.transitions import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Kinds of base rows that begin versions, and whether their records had no open version before.
BEGIN = {scd2.CHANGED: False, scd2.BOTH: True, scd2.APPEARED: True}


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A load that is planned and not refused: its outcome, and its changes to base and history.

    A change is None if nothing changes. `base_counts` counts the base's rows by outcome. `newest` is the
    newest start or end in the history.
    """

    work: SparkWork
    outcome: LoadOutcome
    newest: datetime | None
    base_counts: Mapping[str, int]
    base: Callable[[IcebergTable], Change] | None
    history: Callable[[IcebergTable], Change] | None

    def commit_base(self, table: IcebergTable) -> None:
        """Commit the change to the base, if there is one."""
        if self.base is not None:
            self.work.commit(table, replace(self.base(table), counts=self.base_counts), self.work.note())

    def commit_history(self, table: IcebergTable, properties: Mapping[str, None] = NOTHING) -> None:
        """Commit the change to the history with the receipt, if there is a change.

        `properties` of the table change in the same commit.
        """
        if self.history is None:
            return
        work, run = self.work, self.work.run
        newest = max(filter(None, (self.newest, run.instant)))
        more = {RECEIPT: json.dumps(run.receipt(self.outcome).to_dict()), NEWEST: iso(newest)}
        made_from = snapshot_of(existing(work.store, base_shape(work.load).table))
        if made_from is not None and not run.skip_base:  # the owner of a kept base may replace it
            more[BASE_SNAPSHOT] = str(made_from)
        change = replace(self.history(table), counts=self.outcome.counts, properties=properties)
        work.commit(table, change, work.note(**more))


@contextmanager
def plan_load(
    work: SparkWork, base: TablePlan, hist: TablePlan, newest: datetime | None, before: LoadOutcome
) -> Iterator[PlannedLoad]:
    """Plan a load. Its rows exist only within the context. Raises Refused (section 3.6).

    `newest` is the newest start or end in the history, and `before` the load's outcome so far.
    """
    began, terms = time.monotonic(), load_terms(work, newest)
    kinds = _kinds(base, hist, terms)
    sides, plan = load_sides(work, base, hist), partial(scd2.plan_part, terms, kinds)
    plan_terms = PlanTerms(
        work.store,
        hist.wanted.table,
        sides,
        [terms.key],
        kinds,
        plan,
        sift=load_sift(terms, sides),
        checkpointed=True,
    )
    with announce_later(), ExitStack() as resources:
        with translate_faults(hist.wanted.table):
            planned = resources.enter_context(run_plan(plan_terms))
            sums = planned.sums
            refuse_faults(work.load, sums, partial(_moved_keys, terms, planned), skip_base=work.run.skip_base)
            versions = _Versions(work, kinds, hist, terms, planned)
            beginnings = versions.begin(resources)
        refuse_late(sums)
        changes = partial(_base_change, work.store, planned), partial(versions.change, beginnings)
        yield _assemble_load(work, sums, changes, newest, before, milliseconds_since(began))


def _kinds(base: TablePlan, hist: TablePlan, terms: scd2.LoadTerms) -> dict[str, pa.Schema]:
    """The columns of planned rows, by kind."""
    added = side_schema(base, base.into.names, ids_of(base))
    begin = side_schema(base, list(dict.fromkeys([terms.key, *terms.mirrored.values(), ROW_HASH])), [])
    business = side_schema(base, terms.business, [])
    ends = side_schema(hist, hist.into.names, ids_of(hist))
    return {
        **dict.fromkeys((scd2.BASE_ADDED, scd2.BOTH, scd2.FLAGGED), added),
        **dict.fromkeys((scd2.CHANGED, scd2.APPEARED), begin),
        **dict.fromkeys((scd2.ADDED_KEYS, scd2.REMOVED_KEYS), business),
        **dict.fromkeys((scd2.HIST_REMOVED, scd2.BASE_REMOVED), PLACE),
        scd2.ENDS: ends,
    }


def _base_change(store: IcebergStore, planned: PlanResult, table: IcebergTable) -> Change:
    added = join_rows(store, *(planned.rows(kind) for kind in (scd2.BASE_ADDED, scd2.BOTH, scd2.FLAGGED)))
    return Change(removed=planned.places(scd2.BASE_REMOVED, table), added=added)


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions that a load ends, and the versions that it begins from rows of the base."""

    work: SparkWork
    kinds: Mapping[str, pa.Schema]
    hist: TablePlan
    terms: scd2.LoadTerms
    planned: PlanResult

    def begin(self, resources: ExitStack) -> "Callable[[], Sequence[RowsToWrite]]":
        """A function that returns the versions that begin.

        The records' pasts are counted immediately. Spark's cached frames are released with `resources`.
        """
        beginning = {kind: rows for kind in BEGIN if (rows := self.planned.rows(kind)) is not None}
        if all(isinstance(rows, pa.Table | RowBatches) for rows in beginning.values()):
            earlier = self._past_keys(beginning)
            return lambda: [
                _map_rows(rows, partial(self._begin_locally, earlier, BEGIN[kind]))
                for kind, rows in beginning.items()
            ]
        frame = self._begin_in_tasks(beginning, resources)
        return lambda: [frame]

    def change(self, beginnings: "Callable[[], Sequence[RowsToWrite]]", table: IcebergTable) -> Change:
        """The change to the history, which ends and begins versions."""
        added = join_rows(self.work.store, *beginnings(), self.planned.rows(scd2.ENDS))
        expected = sum(self.planned.sums.added[kind] for kind in (*BEGIN, scd2.ENDS))
        return Change(removed=self.planned.places(scd2.HIST_REMOVED, table), added=added, expected=expected)

    @property
    def _has_earlier(self) -> bool:
        """Whether records without an open version may have closed versions."""
        return self.hist.has_rows or self.work.load.archive is not None

    def _past_keys(self, beginning: "Mapping[str, RowsToWrite]") -> scd2.PastKeys:
        """The keys of records for which versions begin, by their closed versions. Also counts the pasts."""
        if not self._has_earlier:
            return scd2.PastKeys()
        relevant = {kind: rows for kind, rows in beginning.items() if BEGIN[kind] or self.terms.late}
        tables = [table for rows in relevant.values() for table in tables_of(rows)]
        keys = [table[self.terms.key].combine_chunks() for table in tables]
        if not keys:
            return scd2.PastKeys()
        versions = read_earlier(self.work, self.hist, self.terms, pa.chunked_array(keys))
        earlier = scd2.past_keys_of(self.terms, versions)
        for kind, rows in relevant.items():
            for table in tables_of(rows):
                appear = np.full(len(table), BEGIN[kind])
                self.planned.sums.add(scd2.pasts_of(self.terms, table, appear, earlier))
        return earlier

    def _begin_locally(self, earlier: scd2.PastKeys, appear: bool, rows: pa.Table) -> pa.Table:  # noqa: FBT001
        work, dataset = self.work, self.work.load.dataset
        versions = scd2.begun_versions(self.terms, rows, np.full(len(rows), appear), earlier)
        key = {"key": replace(work.load, dialect=DuckDB()).hist_key(ROWS_ALIAS)}
        keys = compute_locally(work, versions.select([dataset.key]), key)["key"]
        return in_schema(versions.append_column(work.load.pair.hist_key, keys), self.kinds[scd2.ENDS])

    def _begin_in_tasks(self, beginning: "Mapping[str, Any]", resources: ExitStack) -> "DataFrame":
        """The versions that begin, planned in tasks with the closed versions of the same records."""
        work, hist, terms = self.work, self.hist, self.terms
        added, kinds = self.planned.sums.added, {scd2.BEGINS: self.kinds[scd2.ENDS]}
        schema = self.kinds[scd2.APPEARED]
        frames = (
            rows.select(*map(quote, schema.names), sf.lit(BEGIN[kind]).alias(scd2.APPEARS))
            for kind, rows in beginning.items()
        )
        frame = reduce(lambda one, other: one.unionByName(other), frames)
        schema = schema.append(pa.field(scd2.APPEARS, pa.bool_()))
        count = sum(added[kind] for kind in beginning)
        sides = {scd2.BEGINNING: Side(schema, lambda: frame, count=count, repeatable=True)}
        if self._has_earlier:
            earlier = side_schema(hist, scd2.earlier_columns(terms), [])
            ended = partial(earlier_versions, work, hist, terms)
            sides[scd2.EARLIER] = Side(
                earlier, ended, count=hist.table.rows if hist.table else 0, meets=scd2.BEGINNING
            )
        key = [terms.key] if self._has_earlier else []
        plan = partial(scd2.plan_beginnings, terms, self.kinds[scd2.ENDS])
        planned = plan_in_tasks(
            PlanTerms(work.store, hist.wanted.table, sides, key, kinds, plan, checkpointed=True), resources
        )
        self.planned.sums.join(planned.sums)
        names = self.kinds[scd2.ENDS].names
        begun: Any = planned.rows(scd2.BEGINS)
        rows = work.with_pepper(begun.alias("r"))
        keyed = rows.withColumn(work.load.pair.hist_key, work.sql(work.load.pair.version_key("r")))
        return keyed.select(*map(quote, names))


def _map_rows(rows: pa.Table | RowBatches, make: Callable[[pa.Table], pa.Table]) -> pa.Table | RowBatches:
    return make(rows) if isinstance(rows, pa.Table) else RowBatches(lambda: map(make, tables_of(rows)))


def _moved_keys(terms: scd2.LoadTerms, planned: PlanResult) -> list[str]:
    """Business keys of records that appear in the base, while other records with the same keys vanish."""
    added: Any = planned.rows(scd2.ADDED_KEYS)
    removed: Any = planned.rows(scd2.REMOVED_KEYS)
    if added is None or removed is None:
        return []
    names = list(terms.business)
    if isinstance(added, pa.Table | RowBatches):
        sides = [pa.concat_tables(tables_of(rows)).group_by(names).aggregate([]) for rows in (added, removed)]
        numbers = pa.concat_tables(sides).group_by(names).aggregate([([], "count_all")])
        both = numbers.filter(pc.equal(numbers["count_all"], len(sides)))
        return scd2.few_keys(terms, both.sort_by([(name, "ascending") for name in names]))
    both = added.intersect(removed).orderBy(*map(quote, names)).limit(scd2.SAMPLED_ROWS)
    return scd2.few_keys(terms, arrow_of(both))


def _assemble_load(
    work: SparkWork,
    sums: PlanSums,
    changes: tuple[Callable[[IcebergTable], Change], Callable[[IcebergTable], Change]],
    newest: datetime | None,
    before: LoadOutcome,
    took: int,
) -> PlannedLoad:
    """Assemble a load from the sums of its plan, which took some milliseconds, and its two changes."""
    counts, steps = sums.counts, [LoadStep("preflight")]
    staged, compared = (scd2.counted_match(side, counts) for side in (scd2.BASE, scd2.OPEN))
    added = staged.appeared + staged.changed
    if not work.run.skip_base:
        unseen = {
            name.removeprefix(scd2.UNSEEN): n for name, n in counts.items() if name.startswith(scd2.UNSEEN)
        }
        warn_of_collisions(work.load, unseen)
        steps += [
            LoadStep("base_delete", staged.vanished),
            LoadStep("base_replace", staged.changed),
            LoadStep("base_insert", added, took),
        ]
    cases = scd2.tally(compared, counts.get(scd2.SEEN, 0), counts.get(scd2.INTERRUPTED, 0))
    steps += [LoadStep(name, count) for name, count in cases.rows.items()]
    steps.append(LoadStep("merge", sum(cases.rows.values()), took))
    kinds = {State.NEW: scd2.APPEARED, State.CHANGED: scd2.CHANGED, State.DELETED: scd2.DELETED}
    outcome = replace(
        before,
        counts=cases.counts,
        steps=steps,
        base=compared.delivered,
        changed_base=staged.vanished + staged.changed + added,
        keys={str(state): scd2.sampled_keys(sums, kind) for state, kind in kinds.items()},
    )
    base_counts = {"inserted": staged.appeared, "changed": staged.changed, "deleted": staged.vanished}
    base, history = (
        None if match.nothing else change for match, change in zip((staged, compared), changes, strict=True)
    )
    return PlannedLoad(work, outcome, newest, base_counts, base, history)
