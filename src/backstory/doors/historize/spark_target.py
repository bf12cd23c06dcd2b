"""Loads on Spark; the registry of runs is the properties of the commits (decisions H2 and H6)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from backstory.doors.historize.load import Load
from backstory.doors.historize.load_here import plan_here
from backstory.doors.historize.model import ModelDataset
from backstory.doors.historize.preflight import require_hist_columns
from backstory.doors.historize.preparing import with_archive
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep
from backstory.doors.historize.runs import LOADS, LoadTold, RegisteredRun, dataset_key
from backstory.doors.historize.spark_base import (
    PlannedBase,
    maintain_base,
    maintained_base,
    planned_base,
    with_base,
)
from backstory.doors.historize.spark_history import PlannedHistory, newest_of, planned_history
from backstory.doors.historize.spark_lease import hold_lease, recover, refuse_leased
from backstory.doors.historize.spark_log import append_loads, told_row
from backstory.doors.historize.spark_maintenance import maintain
from backstory.doors.historize.spark_runs import known_run
from backstory.doors.historize.spark_standing import TablePlan, apply_shape, plan_table
from backstory.doors.historize.spark_tables import base_shape, hist_shape, types_of
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.work import LoadRun, Target, place_name
from backstory.errors import BackstoryError, Refused
from backstory.model.change import Change
from backstory.model.table import TableName
from backstory.spark.settled import hold_settings
from backstory.stores.iceberg.store import Store, load
from backstory.stores.locks import writing
from backstory.stores.port import LOADING
from backstory.stores.sql.dialects.spark import Spark

LOG = structlog.get_logger()


class SparkTarget(Target):
    """Tables of a warehouse."""

    # There the log is a commit.
    logs_unchanged = False

    def __init__(self, store: Store, pepper: str) -> None:
        self.dialect = Spark()
        self._store = store
        self._pepper = pepper

    @property
    def place(self) -> str:
        return place_name(self._store.address)

    def close(self) -> None:
        """The session is its owner's."""

    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        return types_of(self._store, TableName(schema, table))

    @contextmanager
    def holding(self, schema: str, dataset: ModelDataset, run_id: str) -> Iterator[None]:
        del run_id
        # Other processes are kept out by the commits, which hold only on what was read, and by the lease.
        with writing(self._store, TableName("", dataset_key(schema, dataset))):
            yield

    def known(self, schema: str, dataset: ModelDataset, run_id: str) -> RegisteredRun | None:
        return known_run(self._store, schema, dataset, run_id)

    def newest(self, schema: str, tables: Sequence[str]) -> datetime | None:
        for name in tables:
            table = load(self._store, TableName(schema, name))
            if table is not None:
                return newest_of(self._store, table)
        return None

    def register(self, run: LoadRun) -> None:
        """The commits are the registry."""

    def refused(self, run: LoadRun, error: BackstoryError) -> None:
        """A load that made no commit is in none."""

    def load(
        self, load: Load, run: LoadRun, finished: Callable[[LoadOutcome], HistoryReceipt]
    ) -> LoadOutcome:
        if load.dataset.historization.engine == "four_step":
            raise Refused(
                "wrong-engine",
                "On Spark four statements would be four commits, and readers would see the states in "
                "between.",
                "Use engine: auto; `sql=True` prints the four steps.",
            )
        work = SparkWork(self._store, with_archive(load, self.columns), run, self._pepper)
        with hold_settings(self._store.session):
            return self._loaded(work, finished)

    def _loaded(self, work: SparkWork, finished: Callable[[LoadOutcome], HistoryReceipt]) -> LoadOutcome:
        """Plan base and history; when nothing speaks against either, bring schemas and rows up to date."""
        told: Sequence[str] = ()
        recover(work)
        upkeep = work.run.rehash or work.run.rehash_base or work.run.relabel is not None
        base, hist = self._standing(work)
        work = replace(work, base=base.table)
        if not work.run.dry_run and (upkeep or base.evolves or hist.evolves):
            with self._planned(work, base, hist) as (_, history):
                told = history.outcome.schema_changes
            # Spark runs no frame any more whose table got other columns: it is planned anew below.
            apply_shape(work, base)
            apply_shape(work, hist)
            maintain_base(work)
            maintain(work)
            work = replace(work, run=replace(work.run, rehash=False, rehash_base=False, relabel=None))
            base, hist = self._standing(work)
            work = replace(work, base=base.table)
        with self._planned(work, base, hist, told) as (planned, history):
            if work.run.dry_run:
                _rehearse(
                    work, (base, {} if planned is None else planned.counts), (hist, history.outcome.counts)
                )
                return history.outcome
            base_table = apply_shape(work, base)
            hist_table = apply_shape(work, hist)
            if planned is None or planned.nothing:
                return history.commit(work, hist_table, finished)
            if history.nothing:
                planned.commit(work, base_table)
                return history.outcome
            with hold_lease(work, base_table, hist_table) as held:
                planned.commit(work, base_table)
                return history.commit(work, held, finished, {LOADING: None})

    def _standing(self, work: SparkWork) -> tuple[TablePlan, TablePlan]:
        model_load, store = work.load, self._store
        base = plan_table(
            store,
            base_shape(model_load),
            model_load.base_columns,
            model_load.dataset.former_names,
            self.dialect,
        )
        hist = plan_table(
            store,
            hist_shape(model_load),
            model_load.hist.target_columns,
            model_load.hist.former_names,
            self.dialect,
            lambda plan: require_hist_columns(model_load, plan.added),
        )
        refuse_leased(hist.table)
        return base, hist

    @contextmanager
    def _planned(
        self, work: SparkWork, base: TablePlan, hist: TablePlan, told: Sequence[str] = ()
    ) -> Iterator[tuple[PlannedBase | None, PlannedHistory]]:
        """Base and history compared; `told` are schema changes that were made already."""
        loaded = LoadOutcome(
            schema_changes=[*told, *base.changes, *hist.changes], steps=[LoadStep("preflight")]
        )
        if work.run.skip_base and base.table is None:
            missing = f"There is no table {base.wanted.table}."
            raise Refused("BASE_NOT_LOADED", missing, "Load the base first.")
        with ExitStack() as kept, self._store.memory.lease() as lease:
            if plan := plan_here(work, base, hist, loaded, lease, kept):
                yield plan.base, plan.history
                return
        LOG.info("planned in Spark's tasks", table=str(hist.wanted.table))
        with _planned_by_frames(work, base, hist, loaded) as planned:
            yield planned

    def log_rows(self, loads: Sequence[LoadTold]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {LOADS: [told_row(load) for load in loads]}

    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        del table
        append_loads(self._store, rows)


@contextmanager
def _planned_by_frames(
    work: SparkWork, base: TablePlan, hist: TablePlan, loaded: LoadOutcome
) -> Iterator[tuple[PlannedBase | None, PlannedHistory]]:
    if work.run.skip_base:
        with planned_history(work, base.rows, hist, loaded) as history:
            yield None, history
        return
    with (
        planned_base(work, maintained_base(work, base)) as (planned, rows),
        planned_history(work, rows, hist, with_base(loaded, planned)) as history,
    ):
        yield planned, history


def _rehearse(work: SparkWork, *tables: tuple[TablePlan, Mapping[str, int]]) -> None:
    """Tell what a dry run would make of base and history."""
    for before, counts in tables:
        told = {name: count for name, count in counts.items() if name != "unchanged"}
        into = before.into if before.changes else None
        if into or any(told.values()):
            work.commit(before.table, Change(told, into=into), work.note())
