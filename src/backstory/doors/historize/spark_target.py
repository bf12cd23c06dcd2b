"""Loads on Spark: maintenance, then the commits of base and history as one unit (decision H2, section 3.8).

Between the two commits, the history's properties contain a lease. The lease names the load, the base's
snapshot before the load, and the time until which other loads wait. The history's own commit removes the
lease. If the load fails or is killed, the base is restored, either at once or by the next load.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import array_contains, collect_set, lit, when

from backstory.doors.historize import runs
from backstory.doors.historize.load import Load, new_label, with_archive
from backstory.doors.historize.load_plan import PlannedLoad, plan_load
from backstory.doors.historize.load_sides import pruned_keys
from backstory.doors.historize.model import ColumnRole, ModelDataset, label_changes
from backstory.doors.historize.preflight import require_base_key, require_hist_columns
from backstory.doors.historize.receipts import LoadOutcome
from backstory.doors.historize.spark_runs import UNDONE, append_loads, find_run, log_row, newest_of
from backstory.doors.historize.spark_tables import (
    DOOR,
    SparkWork,
    TablePlan,
    apply_shape,
    base_shape,
    first_of,
    hist_shape,
    plan_table,
    snapshot_of,
    types_of,
)
from backstory.doors.historize.stage import no_stage
from backstory.engine.deliver import commit_change
from backstory.errors import BackstoryError, Refused, TryAgain
from backstory.model.change import TOKEN, Change, Note
from backstory.model.instant import iso, parse_instant
from backstory.model.table import Shape, TableName
from backstory.spark.session import hold_settings
from backstory.stores.iceberg.conditions import change_where
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing, load
from backstory.stores.port import LOADING, conflict
from backstory.stores.sql.dialects import Spark
from backstory.stores.tables import lock_tables

# No column of a model has a space in its name.
KEY, PAST_ENDS = "record key", "past ends"


def maintain(work: SparkWork) -> None:
    """Recompute hashes of the base and open versions, or relabel states, as the run requires (7.2, 7.6)."""
    if work.run.rehash_base:  # a delta contains only some of the base's rows
        every = column(work.load.dataset.key).isNotNull()
        _update(work, base_shape(work.load), every, lambda rows: _rehash(work, rows))
    if work.run.rehash:
        open_ = column(ColumnRole.ENDED).isNull()
        _update(work, hist_shape(work.load), open_, lambda rows: _rehash(work, rows))
    if work.run.relabel is not None:
        before, now = work.run.relabel, work.load.labels
        apart = (before.new, before.reappeared) if now.new != now.reappeared else ()
        named = column(ColumnRole.STATE).isin(list(dict.fromkeys((*label_changes(before, now), *apart))))
        shape = hist_shape(work.load)
        versions = work.store.spark.table(work.store.sql_name(shape.table))
        _update(work, shape, named, lambda rows: _relabel_versions(work, rows, versions))


def preview_base(work: SparkWork, before: TablePlan) -> TablePlan:
    """The base with the hashes that maintenance will write."""
    if not work.run.rehash_base:
        return before
    return replace(before, read=lambda: _rehash(work, before.rows), is_preview=True)


def preview_history(work: SparkWork, before: TablePlan) -> TablePlan:
    """The history with the hashes and labels that maintenance will write."""
    if not (work.run.rehash or work.run.relabel is not None):
        return before

    def read() -> DataFrame:
        rows = _rehash(work, before.rows) if work.run.rehash else before.rows
        return rows if work.run.relabel is None else _relabel_versions(work, rows, rows)

    return replace(before, read=read, is_preview=True)


def _update(work: SparkWork, shape: Shape, where: Column, becoming: Callable[[DataFrame], DataFrame]) -> None:
    table = existing(work.store, shape.table)
    change = change_where(work.store, table, where, becoming)
    work.commit(table, change, replace(work.note(), token=""))


def _rehash(work: SparkWork, rows: DataFrame) -> DataFrame:
    value = work.sql(work.load.row_hash("h"))
    return rows.alias("h").withColumn(ColumnRole.ROW_HASH, value)


def _relabel_versions(work: SparkWork, rows: DataFrame, versions: DataFrame) -> DataFrame:
    """The rows with the current labels.

    `versions` has all versions of the history. An open version that began when its record returned gets the
    label of REAPPEARED.
    """
    before, now, names = work.run.relabel, work.load.labels, rows.columns
    assert before is not None
    label = work.sql(new_label(work.load, label_changes(before, now)))
    if now.new == now.reappeared:
        return rows.alias("h").withColumn(ColumnRole.STATE, label)
    key, ended = column(work.load.dataset.key), column(ColumnRole.ENDED)
    changed = when(column(ColumnRole.STATE) == before.changed, ended)
    closed = versions.where(ended.isNotNull()).select(key.alias(KEY), changed.alias(PAST_ENDS))
    if (pruned := pruned_keys(work, KEY)) is not None:
        closed = closed.unionByName(pruned, allowMissingColumns=True)
    past = closed.groupBy(column(KEY)).agg(collect_set(column(PAST_ENDS)).alias(PAST_ENDS))
    rows = rows.join(past, key == column(KEY), "left")
    again = ended.isNull() & column(ColumnRole.STATE).isin(before.new, before.reappeared)
    again &= ~array_contains(column(PAST_ENDS), column(ColumnRole.STARTED))
    state = when(again, lit(now.reappeared)).otherwise(label)
    return rows.alias("h").withColumn(ColumnRole.STATE, state).select(*map(column, names))


# Writing both tables can take long. A killed run can continue at once under its own id.
LEASE_TIME = timedelta(hours=1)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadLease:
    """A load between its two commits: its token and run, the lease's end, and the base's former snapshot."""

    load: str
    run_id: str
    until: str
    base: int | None

    @property
    def lasts(self) -> bool:
        """Whether the load of the lease may still be running."""
        return parse_instant(self.until) > datetime.now(UTC)


def lease_of(table: IcebergTable | None) -> LoadLease | None:
    """The lease that a history's properties contain, or None."""
    text = table and table.properties.get(LOADING)
    return LoadLease(**json.loads(text)) if text else None


def recover(work: SparkWork) -> None:
    """Restore a base that an interrupted load left newer than its history.

    A killed run can continue at once. Raises TryAgain (CONCURRENT_RUN) while another load may be running, or
    if a dry run would need to restore the base.
    """
    store, schema, dataset = work.store, work.load.schema, work.load.dataset
    hist = first_of(store, schema, dataset.hist_names)
    lease = lease_of(hist)
    if hist is None or lease is None:
        return
    if lease.lasts and lease.load != work.token:
        raise _concurrent(hist, lease)
    if work.run.dry_run:
        raise TryAgain(
            "CONCURRENT_RUN",
            f"The run {lease.run_id} was interrupted while it loaded {hist.shape.table}.",
            "Load without `dry_run=True`: the load restores the base first, which a dry run does not.",
        )
    base = first_of(store, schema, dataset.names)
    if base is None:
        _write_lease(store, hist, None)  # nothing is left to restore
    else:
        put_back(store, base, hist, lease)


@contextmanager
def hold_lease(work: SparkWork, base: IcebergTable, hist: IcebergTable) -> Iterator[IcebergTable]:
    """Hold the lease for a load of both tables, and yield the history with the lease.

    A failure within the context restores the base. Raises TryAgain if the history has changed since the plan.
    """
    until = datetime.now(UTC) + LEASE_TIME
    lease = LoadLease(work.token, work.run.run_id, iso(until), snapshot_of(base))
    leased = _write_lease(work.store, hist, lease)
    try:
        yield leased
    except BaseException:
        try:
            put_back(work.store, base, leased, lease)
        except BackstoryError as error:
            # The lease stays, and the next load restores the base.
            log.warning(f"the base {base.shape.table} could not be restored: {error}")
        raise


def put_back(store: IcebergStore, base: IcebergTable, hist: IcebergTable, lease: LoadLease) -> None:
    """Restore the base's rows from before the lease, then end the lease.

    If the history has another lease or no lease, the load is over, and nothing is done.
    """
    hist = existing(store, hist.shape.table)
    if lease_of(hist) != lease:
        return
    # The lease is rewritten first, so that a pending commit of the leased load fails.
    ended = replace(lease, until=iso(datetime.now(UTC)))
    hist = _write_lease(store, hist, ended)
    _roll_back(store, existing(store, base.shape.table), lease)
    _write_lease(store, hist, None)


def _write_lease(store: IcebergStore, hist: IcebergTable, lease: LoadLease | None) -> IcebergTable:
    """Write this lease into the history. None removes the lease.

    Returns the history. Raises TryAgain if the history changed in the meantime.
    """
    name, before = hist.shape.table, snapshot_of(hist)
    properties = {LOADING: None if lease is None else json.dumps(asdict(lease))}
    built = _commit(store, hist, Change(properties=properties))
    written = existing(store, name)
    if lease_of(written) != lease or snapshot_of(written) != (built or before):
        raise conflict(name)
    return written


def _commit(store: IcebergStore, table: IcebergTable, change: Change, **more: str) -> int | None:
    """Commit a change. Returns the id of the snapshot, or None if there is no new snapshot."""
    built = commit_change(store, table, change, Note(DOOR, "", more))
    return built.snapshot_id if built else None


def _roll_back(store: IcebergStore, base: IcebergTable, lease: LoadLease) -> None:
    current = base.newest
    if current is None or current.id == lease.base:
        return
    name, expired = base.shape.table, lease.base is not None and base.snapshot_by_id(lease.base) is None
    if current.properties.get(TOKEN) != lease.load or expired:
        log.warning(f"{name} was changed after an interrupted load, and stays as it is")
        return
    change = Change(whole=True, snapshot=True) if lease.base is None else Change(back_to=lease.base)
    _commit(store, base, change, **{UNDONE: lease.load})


def _concurrent(table: IcebergTable, lease: LoadLease) -> TryAgain:
    return TryAgain(
        "CONCURRENT_RUN",
        f"Another run ({lease.run_id}) is loading {table.shape.table}; its lease ends at {lease.until}.",
        "Wait until it ends; a killed run can be continued at once under its own run id.",
    )


class SparkTarget(runs.Target):
    """A warehouse as a target. Its commits and their properties are the registry of runs."""

    # A log entry costs a commit.
    logs_unchanged = False

    def __init__(self, store: IcebergStore, pepper: str) -> None:
        self.dialect = Spark()
        self._store = store
        self._pepper = pepper

    @property
    def place(self) -> str:
        return runs.place_name(self._store.address)

    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        stored = load(self._store, TableName(schema, table))
        return None if stored is None else types_of(stored.shape)

    @contextmanager
    def hold(self, schema: str, dataset: ModelDataset, run_id: str) -> Iterator[None]:
        del run_id
        # The lease excludes other processes, and so do commits, which fail if the table changed.
        with lock_tables(self._store, TableName("", runs.dataset_key(schema, dataset))):
            yield

    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> runs.RegisteredRun | None:
        return find_run(self._store, schema, dataset, run_id)

    def newest_instant(self, schema: str, tables: Sequence[str]) -> datetime | None:
        table = first_of(self._store, schema, tables)
        return None if table is None else newest_of(self._store, table)

    def load(self, load: Load, run: runs.LoadRun) -> LoadOutcome:
        if load.dataset.historization.engine == "four_step":
            raise Refused(
                "wrong-engine",
                "On Spark, the four statements would be four commits, and readers would see the states in "
                "between.",
                "Use engine: auto; `sql=True` prints the four steps.",
            )
        work = SparkWork(self._store, with_archive(load, self.columns), run, self._pepper)
        with hold_settings(self._store.session):
            return self._load(work)

    def _load(self, work: SparkWork) -> LoadOutcome:
        """Plan the base and the history. If neither is refused, update their schemas and rows."""
        stored = load(self._store, hist_shape(work.load).table)
        before = LoadOutcome(warnings=() if stored is None else stored.foreign_writes)
        recover(work)
        base, hist = self._table_plans(work)
        asks_for_upkeep = work.run.rehash or work.run.rehash_base or work.run.relabel is not None
        if not work.run.dry_run and (asks_for_upkeep or base.evolves or hist.evolves):
            with self._plan(work, base, hist, before) as planned:
                before = replace(before, schema_changes=planned.outcome.schema_changes)
            # Spark cannot run frames of a table whose columns have changed, so the load is planned again
            # below.
            for table in (base, hist):
                apply_shape(planned.work, table)
            maintain(planned.work)
            work = replace(work, run=replace(work.run, rehash=False, rehash_base=False, relabel=None))
            base, hist = self._table_plans(work)
        with self._plan(work, base, hist, before) as planned:
            work = planned.work
            if work.run.dry_run:
                base_counts = {} if work.run.skip_base else planned.base_counts
                _rehearse(work, (base, base_counts), (hist, planned.outcome.counts))
                return planned.outcome
            base_table, hist_table = apply_shape(work, base), apply_shape(work, hist)
            if planned.base is None or planned.history is None:
                planned.commit_base(base_table)
                planned.commit_history(hist_table)
                return planned.outcome
            with hold_lease(work, base_table, hist_table) as leased:
                planned.commit_base(base_table)
                planned.commit_history(leased, {LOADING: None})
        return planned.outcome

    def _table_plans(self, work: SparkWork) -> tuple[TablePlan, TablePlan]:
        store, model, dataset = self._store, work.load, work.load.dataset
        base = plan_table(store, base_shape(model), model.base_columns, dataset.names, self.dialect)
        if base.has_rows:
            require_base_key(model, base.plan.added)
        of_hist = model.hist
        hist = plan_table(store, hist_shape(model), of_hist.target_columns, of_hist.names, self.dialect)
        require_hist_columns(model, hist.plan.added)
        if hist.table is not None and (lease := lease_of(hist.table)) is not None:
            raise _concurrent(hist.table, lease)  # another load is between its commits
        return base, hist

    def _plan(
        self, work: SparkWork, base: TablePlan, hist: TablePlan, before: LoadOutcome
    ) -> AbstractContextManager[PlannedLoad]:
        """The planned load of base and history. `before` is its outcome so far."""
        if work.run.skip_base and base.table is None:
            missing = f"There is no table {base.wanted.table}."
            raise Refused("BASE_NOT_LOADED", missing, "Load the base first.")
        if not work.run.skip_base and work.run.stage is None:
            raise no_stage(work.load.dataset)
        before = replace(before, schema_changes=[*before.schema_changes, *base.changes, *hist.changes])
        newest = None if hist.table is None else newest_of(work.store, hist.table)
        work = replace(work, base=base.table)
        base, hist = preview_base(work, base), preview_history(work, hist)
        return plan_load(work, base, hist, newest, before)

    def log_rows(self, loads: Sequence[runs.LoadEntry]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {runs.LOADS: [log_row(load) for load in loads]}

    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        del table
        append_loads(self._store, rows)


def _rehearse(work: SparkWork, *tables: tuple[TablePlan, Mapping[str, int]]) -> None:
    """Report the changes to base and history that the load would commit if it were not a dry run."""
    for before, counts in tables:
        changed = {name: count for name, count in counts.items() if name != "unchanged"}
        into = before.into if before.changes else None
        if into or any(changed.values()):
            work.commit(before.table, Change(changed, into=into), work.note())
