"""Query and prune a history, make its views, and erase records, for the command line (section 7)."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from backstory.doors.historize.door import datasets_to_load
from backstory.doors.historize.hist_state import ModelPlace, stored_history, sync_hist
from backstory.doors.historize.load import Load, prepare_load
from backstory.doors.historize.model import ColumnRole, HistState, ModelDataset
from backstory.doors.historize.receipts import LoadStep, milliseconds_since
from backstory.doors.historize.resolve import HIST, namespace_of
from backstory.doors.historize.runs import STEPS, dataset_key
from backstory.errors import Refused, UsageError
from backstory.model.instant import instant_of, iso
from backstory.reading.history_queries import Key, Query, StoredHistory, Time, fetch_rows, in_utc
from backstory.stores.sql.engine import Engine
from backstory.upkeep import model_histories
from backstory.upkeep.model_histories import Cut, Pruned, create_views, drop_views


@dataclass(frozen=True)
class Upkeep(ModelPlace):
    """One dataset's history in its warehouse or database.

    `engine` is the connection of `target`. `catalog` qualifies the schema if a session has several catalogs.
    """

    engine: Engine
    name: str
    catalog: str | None = None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    @cached_property
    def dataset(self) -> ModelDataset:
        """The dataset in the model. Raises UsageError if the model lacks it, or if it has no history."""
        datasets = datasets_to_load(self.model, self.name)
        if not datasets:
            raise UsageError("no-history", f"{self.name} keeps no history.", "Name a historized dataset.")
        return self.without_lost_names(datasets[0])

    @cached_property
    def schema(self) -> str:
        """The namespace of the tables."""
        return namespace_of(self.model, self.dataset)

    @cached_property
    def state(self) -> HistState:
        """The history's metadata, from its lock file or else from its table."""
        if state := self.find_state(self.dataset):
            return state
        adopted = self.adopt_state(self.dataset)
        if adopted is None:
            raise UsageError("no-history", f"{self.name} has no history yet.", "Load it first.")
        name = adopted.target_dataset_name.removesuffix(HIST)  # maybe a former one, until the next load
        dataset = self.dataset.model_copy(update={"target_dataset_name": name})
        return sync_hist(dataset, adopted, self.clock())

    def history(self) -> StoredHistory:
        """The history in its current shape, with the time from which it is complete."""
        name = self.state.target_dataset_name
        dialect, columns, rules = self.target.dialect, self.target.columns, self.dataset.historization
        if columns(self.schema, name) is None:
            raise UsageError("no-history", f"There is no table {self.schema}.{name}.", "Load it first.")
        history = stored_history(dialect, self.schema, self.state, rules, columns, self.catalog)
        if history.model.archive is None:
            return history
        newest = self.engine.execute_scalar(f"SELECT MAX({history.model.span.end}) FROM {history.archive}")
        since = history.model.whole_since
        if newest is None or (since and in_utc(newest) <= since):
            return history
        return replace(history, model=replace(history.model, whole_since=in_utc(newest)))

    def ask(self, query: Query) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries. Times are in UTC."""
        return fetch_rows(self.engine, query)

    def refresh_views(self) -> None:
        """Create the views that the model defines, with the current columns."""
        with self.engine.transaction():
            self.engine.execute_all(drop_views(self.history()))
            self.engine.execute_all(create_views(self.history()))

    def prune(
        self,
        before: Time,
        *,
        legal_hold: Sequence[Key] = (),
        keep_last: bool | None = None,
        run_id: str | None = None,
        apply: bool = False,
    ) -> Pruned:
        """Archive closed versions that ended before a time.

        Without `apply`, they are only counted. Raises Refused (PRUNE_NOT_ALLOWED) for a dataset without
        `allow_prune`. The watermark is written to the lock file.
        """
        rules = self.dataset.historization
        cut = Cut(instant_of(before), rules.keep_last if keep_last is None else keep_last, tuple(legal_hold))
        history = self.history()
        if not apply:
            return model_histories.preview_pruning(history, self.engine, cut)
        if not rules.allow_prune:
            raise Refused(
                "PRUNE_NOT_ALLOWED",
                f"{self.name} must not be pruned.",
                "Set allow_prune: true in its historization.",
            )
        run, began = run_id or str(uuid.uuid4()), time.monotonic()

        def remember(watermark: datetime) -> None:
            state = self.state.model_copy(update={"prune_watermark": iso(watermark)})
            self.write_state(self.dataset, state)

        with self.target.hold(self.schema, self.dataset, run), self.engine.transaction():
            self.engine.execute_all(drop_views(self.history()))
            model_histories.prepare_archive(self.history(), self.engine)
            pruned = model_histories.prune(self.history(), self.engine, cut, run, self.clock(), remember)
            self.engine.execute_all(create_views(self.history()))
        self._log(run, "prune", pruned.versions, began)
        return pruned

    def erase(self, key: Key, *, rows: bool = False, run_id: str | None = None, apply: bool = False) -> int:
        """Erase a record's values or, with `rows`, its rows.

        Returns the number of the record's versions. Without `apply`, nothing is written. Raises Refused
        (KEY_PRESENT) while the base has the record.
        """
        history = self.history()
        load = prepare_load(self.model, self.dataset, self.state, self.target.dialect)
        run, began = run_id or str(uuid.uuid4()), time.monotonic()
        with self.target.hold(self.schema, self.dataset, run), self.engine.transaction():
            _refuse_present(load, history, self.engine, key)
            count = model_histories.erase_record(history, self.engine, key, rows=rows, apply=apply)
        if apply:
            self._log(run, "erase_rows" if rows else "erase_values", count, began)
        return count

    def _log(self, run: str, step: str, rows: int, began: float) -> None:
        ids = {
            "dataset_key": dataset_key(self.schema, self.dataset),
            "load_run_id": run,
            "attempt_no": 1,
        }
        done = LoadStep(step, rows, milliseconds_since(began))
        self.target.log(STEPS, [{**ids, **done.row(1)}])


def _refuse_present(load: Load, history: StoredHistory, engine: Engine, key: Key) -> None:
    """Raise Refused while the base has a live row of the record, because the next load would add it again."""
    if engine.introspect_table(load.schema, load.dataset.name) is None:
        return
    keys = (column for column in load.hist.target_columns if column.system_role is ColumnRole.BUSINESS_KEY)
    condition = history.is_record("r", key, {column.name: column.source for column in keys})
    if engine.execute_scalar(
        f"SELECT COUNT(*) FROM {load.base_table} AS r WHERE {condition}{load.live('r')}"
    ):
        raise Refused(
            "KEY_PRESENT",
            f"{load.dataset.name} still has this record, so the next load would add it again.",
            "Remove it from the base first, or flag it as deleted.",
        )
