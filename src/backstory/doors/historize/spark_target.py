"""Loads on Spark; the registry of runs is the properties of the commits (decisions H2 and H6)."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from backstory.doors.historize.load import Load
from backstory.doors.historize.load_terms import load_terms
from backstory.doors.historize.model import ModelDataset
from backstory.doors.historize.planned_load import PlannedLoad, plan_rows, planned_load
from backstory.doors.historize.preflight import require_base_key, require_hist_columns
from backstory.doors.historize.preparing import with_archive
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep
from backstory.doors.historize.runs import LOADS, LoadTold, RegisteredRun, dataset_key
from backstory.doors.historize.spark_lease import hold_lease, recover, refuse_leased
from backstory.doors.historize.spark_log import append_loads, log_row
from backstory.doors.historize.spark_maintenance import (
    asks_for_upkeep,
    maintain,
    maintained,
    maintained_base,
)
from backstory.doors.historize.spark_runs import find_run, newest_of
from backstory.doors.historize.spark_tables import base_shape, hist_shape, types_of
from backstory.doors.historize.spark_work import SparkWork
from backstory.doors.historize.table_plan import TablePlan, apply_shape, plan_table
from backstory.doors.historize.work import LoadRun, Target, place_name
from backstory.errors import BackstoryError, Refused
from backstory.model.change import Change
from backstory.model.table import TableName
from backstory.spark.settled import hold_settings
from backstory.stores.iceberg.store import Store, load
from backstory.stores.locks import writing
from backstory.stores.port import LOADING
from backstory.stores.sql.dialects.spark import Spark


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

    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> RegisteredRun | None:
        return find_run(self._store, schema, dataset, run_id)

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
        before = LoadOutcome(warnings=self._foreign_writes(work))
        recover(work)
        base, hist = self._table_plans(work)
        work = replace(work, base=base.table)
        if not work.run.dry_run and (asks_for_upkeep(work.run) or base.evolves or hist.evolves):
            with self._planned(work, base, hist, before) as planned:
                before = replace(before, schema_changes=planned.history.outcome.schema_changes)
            # Spark runs no frame any more whose table got other columns: it is planned anew below.
            apply_shape(work, base)
            apply_shape(work, hist)
            maintain(work)
            work = replace(work, run=replace(work.run, rehash=False, rehash_base=False, relabel=None))
            base, hist = self._table_plans(work)
            work = replace(work, base=base.table)
        with self._planned(work, base, hist, before) as planned:
            of_base, history = planned.base, planned.history
            if work.run.dry_run:
                counts = {} if of_base is None else of_base.counts
                _rehearse(work, (base, counts), (hist, history.outcome.counts))
                return history.outcome
            base_table = apply_shape(work, base)
            hist_table = apply_shape(work, hist)
            if of_base is None or of_base.nothing:
                return history.commit(work, hist_table, finished)
            if history.nothing:
                of_base.commit(work, base_table)
                return history.outcome
            with hold_lease(work, base_table, hist_table) as held:
                of_base.commit(work, base_table)
                return history.commit(work, held, finished, {LOADING: None})

    def _foreign_writes(self, work: SparkWork) -> Sequence[str]:
        hist = load(self._store, hist_shape(work.load).table)
        return () if hist is None else hist.foreign_writes

    def _table_plans(self, work: SparkWork) -> tuple[TablePlan, TablePlan]:
        model_load, store = work.load, self._store
        base = plan_table(
            store,
            base_shape(model_load),
            model_load.base_columns,
            model_load.dataset.former_names,
            self.dialect,
        )
        if base.filled:
            require_base_key(model_load, base.plan.added)
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
        self, work: SparkWork, base: TablePlan, hist: TablePlan, before: LoadOutcome
    ) -> Iterator[PlannedLoad]:
        """Base and history compared; `before` has what the load did and found already."""
        _require_input(work, base)
        changes = [*before.schema_changes, *base.changes, *hist.changes]
        loaded = replace(before, schema_changes=changes, steps=[LoadStep("preflight")])
        began = time.monotonic()
        newest = None if hist.table is None else newest_of(work.store, hist.table)
        terms = load_terms(work, newest)
        base, hist = maintained_base(work, base), maintained(work, hist)
        with plan_rows(work, base, hist, terms) as rows:
            yield planned_load(work, rows, loaded, newest, began)

    def log_rows(self, loads: Sequence[LoadTold]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {LOADS: [log_row(load) for load in loads]}

    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        del table
        append_loads(self._store, rows)


def _require_input(work: SparkWork, base: TablePlan) -> None:
    """Raises Refused for a load without a stage, or without the base that is to stay as it is."""
    if work.run.skip_base and base.table is None:
        missing = f"There is no table {base.wanted.table}."
        raise Refused("BASE_NOT_LOADED", missing, "Load the base first.")
    if not work.run.skip_base and work.run.stage is None:
        raise Refused(
            "BASE_NOT_LOADED",
            f"{work.load.dataset.name} has no stage input.",
            "Set its input, or use `skip_base=True` to keep the base as it is.",
        )


def _rehearse(work: SparkWork, *tables: tuple[TablePlan, Mapping[str, int]]) -> None:
    """Tell what a dry run would make of base and history."""
    for before, counts in tables:
        told = {name: count for name, count in counts.items() if name != "unchanged"}
        into = before.into if before.changes else None
        if into or any(told.values()):
            work.commit(before.table, Change(told, into=into), work.note())
