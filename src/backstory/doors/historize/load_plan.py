"""The plan of a load of a warehouse: the rows of base and history, the counts, and the two commits."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.historize.load_sides import (
    GIVEN,
    compute_locally,
    earlier_versions,
    ids_of,
    load_sides,
    load_sift,
    local_expressions,
    read_earlier,
    side_schema,
)
from backstory.doors.historize.preflight import refuse_faults, refuse_late, warn_of_collisions
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep
from backstory.doors.historize.spark_runs import NEWEST
from backstory.doors.historize.spark_tables import base_shape
from backstory.doors.historize.spark_work import BASE as BASE_SNAPSHOT
from backstory.doors.historize.spark_work import RECEIPT, SparkWork
from backstory.doors.historize.table_plan import TablePlan
from backstory.engine.plans import PlanResult, PlanTerms, RowsToWrite, join_rows, tables_of
from backstory.engine.runner import run_plan
from backstory.engine.sides import Side
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
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.strategies.part_plan import PlanSums
from backstory.strategies.scd2.parts import (
    APPEARED,
    BASE_GOES,
    BEGINS,
    BOTH,
    CAME,
    CHANGED,
    COMES,
    DELETED,
    ENDS,
    FLAGGED,
    GOES,
    INTERRUPTED,
    LOOKED_AT,
    SEEN,
    UNSEEN,
    WENT,
    CountedMatch,
    counted_match,
    few_keys,
    sampled_keys,
)
from backstory.strategies.scd2.plan import (
    PastKeys,
    begun_versions,
    earlier_columns,
    past_keys_of,
    pasts_of,
    plan_beginnings,
    plan_part,
    tally,
)
from backstory.strategies.scd2.terms import APPEARS, BASE, BEGINNING, EARLIER, OPEN, LoadTerms
from backstory.strategies.scd2.transitions import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Kinds of the rows of a base that begin versions, and whether their records had no open version before.
BEGIN = {CHANGED: False, BOTH: True, APPEARED: True}


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """The counts of all parts of a load together, and what it makes of base and history."""

    sums: PlanSums
    base: Callable[[StoredTable], Change]
    history: Callable[[StoredTable], Change]


@contextmanager
def plan_rows(work: SparkWork, base: TablePlan, hist: TablePlan, terms: LoadTerms) -> Iterator[PlannedRows]:
    """The rows of a load, while they last.

    Raises Refused with the codes of section 3.6.
    """
    kinds = _kinds(base, hist, terms)
    sides, plan = load_sides(work, base, hist), partial(plan_part, terms, kinds)
    asked = PlanTerms(
        work.store,
        hist.wanted.table,
        sides,
        [terms.key],
        kinds,
        plan,
        sift=load_sift(terms, sides),
        checkpointed=True,
    )
    with announce_later(), ExitStack() as kept:
        with translate_faults(hist.wanted.table):
            planned = kept.enter_context(run_plan(asked))
            refuse_faults(work, planned.sums, partial(_moved_keys, terms, planned))
            versions = _Versions(work, kinds, hist, terms, planned)
            begun = versions.begin(kept)
        refuse_late(planned.sums)
        yield PlannedRows(
            planned.sums, partial(_base_change, work.store, planned), partial(versions.change, begun)
        )


def _kinds(base: TablePlan, hist: TablePlan, terms: LoadTerms) -> dict[str, pa.Schema]:
    """The columns of the rows that plans give, by kind."""
    come = side_schema(base, base.into.names, ids_of(base))
    begin = side_schema(base, list(dict.fromkeys([terms.key, *terms.mirrored.values(), ROW_HASH])), [])
    business = side_schema(base, terms.business, [])
    ends = side_schema(hist, hist.into.names, ids_of(hist))
    return {
        **dict.fromkeys((COMES, BOTH, FLAGGED), come),
        **dict.fromkeys((CHANGED, APPEARED), begin),
        **dict.fromkeys((CAME, WENT), business),
        **dict.fromkeys((GOES, BASE_GOES), PLACE),
        ENDS: ends,
    }


def _base_change(store: Store, planned: PlanResult, table: StoredTable) -> Change:
    come = join_rows(store, *(planned.rows(kind) for kind in (COMES, BOTH, FLAGGED)))
    return Change(removed=planned.places(BASE_GOES, table), added=come)


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions that a load ends and begins; those that begin are made of rows of the base."""

    work: SparkWork
    kinds: Mapping[str, pa.Schema]
    hist: TablePlan
    terms: LoadTerms
    planned: PlanResult

    def begin(self, kept: ExitStack) -> "Callable[[], Sequence[RowsToWrite]]":
        """Make the versions that begin; what the history has of their records is counted at once.

        What Spark keeps goes with `kept`.
        """
        there = {kind: rows for kind in BEGIN if (rows := self.planned.rows(kind)) is not None}
        if all(isinstance(rows, pa.Table | RowBatches) for rows in there.values()):
            earlier = self._earlier(there)
            return lambda: [
                _map_rows(rows, partial(self._begin_locally, earlier, BEGIN[kind]))
                for kind, rows in there.items()
            ]
        frame = self._begin_in_tasks(there, kept)
        return lambda: [frame]

    def change(self, begun: "Callable[[], Sequence[RowsToWrite]]", table: StoredTable) -> Change:
        """What the load makes of the history."""
        come = join_rows(self.work.store, *begun(), self.planned.rows(ENDS))
        expected = sum(self.planned.sums.added[kind] for kind in (*BEGIN, ENDS))
        return Change(removed=self.planned.places(GOES, table), added=come, expected=expected)

    @property
    def _has_earlier(self) -> bool:
        """Whether records without an open version may have had one."""
        return self.hist.filled or self.work.load.archive is not None

    def _earlier(self, there: "Mapping[str, RowsToWrite]") -> PastKeys:
        """What the history has of the records that begin versions, read for these records alone."""
        if not self._has_earlier:
            return PastKeys()
        asked = {kind: rows for kind, rows in there.items() if BEGIN[kind] or self.terms.late}
        keys = [each[self.terms.key].combine_chunks() for rows in asked.values() for each in tables_of(rows)]
        if not keys:
            return PastKeys()
        versions = read_earlier(self.work, self.hist, self.terms, pa.chunked_array(keys))
        earlier = past_keys_of(self.terms, versions)
        for kind, rows in asked.items():
            for each in tables_of(rows):
                self.planned.sums.add(pasts_of(self.terms, *_halves(each, appear=BEGIN[kind]), earlier))
        return earlier

    def _begin_locally(self, earlier: PastKeys, appear: bool, rows: pa.Table) -> pa.Table:  # noqa: FBT001
        work, dataset = self.work, self.work.load.dataset
        versions = begun_versions(self.terms, *_halves(rows, appear=appear), earlier)
        key = {"key": local_expressions(work.load).hist_key(dataset, GIVEN)}
        keys = compute_locally(work, versions.select([dataset.key]), key)["key"]
        return in_schema(versions.append_column(work.load.pair.hist_key, keys), self.kinds[ENDS])

    def _begin_in_tasks(self, there: "Mapping[str, Any]", kept: ExitStack) -> "DataFrame":
        """The same by Spark, beside the versions of the same records that ended."""
        from pyspark.sql.functions import lit

        work, hist, terms = self.work, self.hist, self.terms
        added, kinds = self.planned.sums.added, {BEGINS: self.kinds[ENDS]}
        schema = self.kinds[APPEARED]
        frames = (
            rows.select(*map(quote, schema.names), lit(BEGIN[kind]).alias(APPEARS))
            for kind, rows in there.items()
        )
        frame = reduce(lambda one, other: one.unionByName(other), frames)
        schema = schema.append(pa.field(APPEARS, pa.bool_()))
        count = sum(added[kind] for kind in there)
        sides = {BEGINNING: Side(schema, lambda: frame, count=count, cached=True)}
        if self._has_earlier:
            earlier = side_schema(hist, earlier_columns(terms), [])
            ended = partial(earlier_versions, work, hist, terms)
            sides[EARLIER] = Side(earlier, ended, count=hist.table.rows if hist.table else 0, meets=BEGINNING)
        key = [terms.key] if self._has_earlier else []
        plan = partial(plan_beginnings, terms, self.kinds[ENDS])
        planned = plan_in_tasks(
            PlanTerms(work.store, hist.wanted.table, sides, key, kinds, plan, checkpointed=True), kept
        )
        self.planned.sums.join(planned.sums)
        names = self.kinds[ENDS].names
        begun: Any = planned.rows(BEGINS)
        rows = work.with_pepper(begun, "r")
        keyed = rows.withColumn(work.load.pair.hist_key, work.sql(work.load.pair.version_key("r")))
        return keyed.select(*map(quote, names))


def _halves(rows: pa.Table, *, appear: bool) -> tuple[pa.Table, pa.Table]:
    """The rows as records that changed, and as records that appeared."""
    nothing = rows.slice(0, 0)
    return (nothing, rows) if appear else (rows, nothing)


def _map_rows(rows: pa.Table | RowBatches, make: Callable[[pa.Table], pa.Table]) -> pa.Table | RowBatches:
    return make(rows) if isinstance(rows, pa.Table) else RowBatches(lambda: map(make, tables_of(rows)))


def _moved_keys(terms: LoadTerms, planned: PlanResult) -> list[str]:
    """Business keys of records that appeared in the base while others with these vanished from it."""
    came: Any = planned.rows(CAME)
    went: Any = planned.rows(WENT)
    if came is None or went is None:
        return []
    names = list(terms.business)
    if isinstance(came, pa.Table | RowBatches):
        sides = [pa.concat_tables(tables_of(rows)).group_by(names).aggregate([]) for rows in (came, went)]
        numbers = pa.concat_tables(sides).group_by(names).aggregate([([], "count_all")])
        both = numbers.filter(pc.equal(numbers["count_all"], len(sides)))
        return few_keys(terms, both.sort_by([(name, "ascending") for name in names]))
    came, went = (
        rows.toDF(*(f"{side}{n}" for n, _ in enumerate(names))) for side, rows in (("c", came), ("w", went))
    )
    same = (came[f"c{n}"].eqNullSafe(went[f"w{n}"]) for n, _ in enumerate(names))
    both = arrow_of(came.join(went, reduce(and_, same), "left_semi").orderBy(*came.columns).limit(LOOKED_AT))
    return few_keys(terms, both.rename_columns(names))


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


def assemble_load(
    work: SparkWork, rows: PlannedRows, loaded: LoadOutcome, newest: datetime | None, began: float
) -> PlannedLoad:
    """The load of planned rows; `loaded` is what it did before, `began` the second at which planning did."""
    counts, base = rows.sums.counts, None
    took = round((time.monotonic() - began) * 1000)
    if not work.run.skip_base:
        unseen = {name.removeprefix(UNSEEN): n for name, n in counts.items() if name.startswith(UNSEEN)}
        warn_of_collisions(work.load, unseen)
        base = _plan_base(counted_match(BASE, counts), rows.base, took)
        written = sum(step.rows for step in base.steps)
        loaded = replace(loaded, steps=[*loaded.steps, *base.steps], changed_base=written)
    compared = counted_match(OPEN, counts)
    cases = tally(compared.sizes, counts.get(SEEN, 0), counts.get(INTERRUPTED, 0))
    steps = [LoadStep(name, count) for name, count in cases.rows.items()]
    steps.append(LoadStep("merge", sum(cases.rows.values()), took))
    outcome = replace(loaded, counts=cases.counts, steps=[*loaded.steps, *steps], base=compared.delivered)
    if work.run.dry_run:
        kinds = {State.NEW: APPEARED, State.CHANGED: CHANGED, State.DELETED: DELETED}
        outcome = replace(
            outcome, keys={str(state): sampled_keys(rows.sums, each) for state, each in kinds.items()}
        )
    return PlannedLoad(base, PlannedHistory(outcome, compared.nothing, newest, rows.history))


def _plan_base(compared: CountedMatch, change: Callable[[StoredTable], Change], took: int) -> PlannedBase:
    appeared, changed, vanished, *_ = compared.sizes
    steps = [
        LoadStep("base_delete", vanished),
        LoadStep("base_replace", changed),
        LoadStep("base_insert", appeared + changed, took),
    ]
    counts = {"inserted": appeared, "changed": changed, "deleted": vanished}
    return PlannedBase(steps, compared.nothing, counts, change)
