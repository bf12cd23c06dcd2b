"""One dataset's load: its run, its history's metadata, what was decided; then the target's part."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from traceback import format_exc
from typing import Final

import structlog

from backstory.doors.historize.load_request import LoadRequest
from backstory.doors.historize.lock import find_state, write_state
from backstory.doors.historize.model import HistState, Model, ModelDataset, StateLabels
from backstory.doors.historize.preparing import adopted, prepare_load, refuse_swaps
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, refusal, stored_receipt
from backstory.doors.historize.resolve import namespace_of, schema_of
from backstory.doors.historize.run_log import RunLog
from backstory.doors.historize.runs import RegisteredRun, hist_names, names_of
from backstory.doors.historize.scopes import delta_cutoff
from backstory.doors.historize.stage import stage_of
from backstory.doors.historize.sync import sync_hist
from backstory.doors.historize.work import LoadRun, Target
from backstory.engine.attempts import retry
from backstory.errors import BackstoryError, Failed, Refused, TryAgain, internal_error
from backstory.formats.wrapping.room import translate_disk_errors
from backstory.model.instant import iso

BEHIND = timedelta(seconds=1)

# How Spark, DuckDB and PostgreSQL call a number that a type of decimals cannot hold.
MISFITS: Final = (
    "CAST_INVALID_INPUT",
    "CAST_OVERFLOW",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "Conversion Error",
    "numeric field overflow",
)
events = structlog.get_logger()


@dataclass(frozen=True)
class DatasetLoads:
    """A batch, at one of its datasets."""

    model: Model
    folder: Path
    target: Target
    asked: LoadRequest
    log: RunLog
    run_id: str
    instant: datetime | None
    clock: Callable[[], datetime]

    def receipt(self, dataset: ModelDataset) -> HistoryReceipt:
        """Load a dataset; a conflict is tried again with the same instant."""
        began = self.clock()
        run: LoadRun | None = None
        try:
            with (
                translate_disk_errors(dataset.name),
                self.target.holding(self._schema(dataset), dataset, self.run_id),
            ):
                known = (
                    self.target.find_run(self._schema(dataset), dataset, self.run_id)
                    if self.asked.run_id
                    else None
                )
                self._refuse_other_instant(known)
                if known and known.receipt:
                    return replace(stored_receipt(known.receipt), dataset=dataset.name)
                run = begun = self._run(dataset, known, began)

                def failed(busy: TryAgain) -> None:
                    nonlocal run, begun
                    self.log.refused(dataset, begun, began, busy)
                    run = begun = replace(begun, attempt=begun.attempt + 1)

                return retry(lambda: self._loaded(begun), failed)
        except BackstoryError as error:
            return self._refused(dataset, run, began, error)
        except Exception as bug:  # the other datasets still run
            events.debug("an internal error", trace=format_exc())  # without the values of variables
            return self._refused(dataset, run, began, internal_error(bug))

    def _refused(
        self, dataset: ModelDataset, run: LoadRun | None, began: datetime, error: BackstoryError
    ) -> HistoryReceipt:
        error = _of_hash(dataset, error)
        self.log.refused(dataset, run, began, error)
        return refusal(dataset.name, self.run_id, run.instant if run else None, error)

    def _schema(self, dataset: ModelDataset) -> str:
        return namespace_of(self.model, dataset)

    def blocked(self, dataset: ModelDataset, upstream: str) -> HistoryReceipt:
        """The receipt of a dataset that is not begun, because what it is loaded from failed."""
        error = Refused(
            "BASE_NOT_LOADED",
            f"{dataset.name} is loaded from {upstream}, whose own load failed.",
            "Fix that load and run again.",
        )
        self.log.blocked(dataset, upstream)
        return refusal(dataset.name, self.run_id, None, error)

    def _refuse_other_instant(self, known: RegisteredRun | None) -> None:
        if known and self.instant and known.load_timestamp != self.instant:
            raise Refused(
                "OTHER_LOAD_TIMESTAMP",
                f"The run {self.run_id} already has the load timestamp {iso(known.load_timestamp)}.",
                "Leave out the timestamp, or use another run id.",
            )

    def _run(self, dataset: ModelDataset, known: RegisteredRun | None, began: datetime) -> LoadRun:
        instant = known.load_timestamp if known else self.instant or self._allocated(dataset)
        return LoadRun(
            dataset,
            self._schema(dataset),
            self.run_id,
            instant,
            began,
            attempt=known.attempt + 1 if known else 1,
            stage=stage_of(dataset, self.folder),
            cutoff=delta_cutoff(self.model, dataset, instant),
            skip_base=self.asked.skip_base,
            dry_run=self.asked.dry_run,
        )

    def _allocated(self, dataset: ModelDataset) -> datetime:
        """The clock's instant, raised a little where the clock is behind by at most a second."""
        now = self.clock()
        schema = self._schema(dataset)
        newest = self.target.newest(schema, hist_names(dataset))
        if newest is None or newest < now:
            return now
        if newest - now > BEHIND:
            raise Refused(
                "NON_MONOTONIC_TIMESTAMP",
                f"The clock says {iso(now)}, but the newest time in {dataset.hist_name} is {iso(newest)}.",
                "Correct the clock, or use `load_timestamp=TIME`.",
            )
        return newest + timedelta(microseconds=1)

    def _loaded(self, run: LoadRun) -> HistoryReceipt:
        dataset = self._overridden(run.dataset)
        found = find_state(dataset, self.folder, run.schema, self.target)
        state = found or self._adopted(dataset)
        refuse_swaps(dataset)
        hist = sync_hist(dataset, state, run.instant)
        assert hist is not None
        run, hist = self._decided(replace(run, dataset=dataset), state, hist)
        load = prepare_load(self.model, dataset, hist, self.target.dialect)
        if not run.dry_run:
            self.target.register(run)

        def finished(outcome: LoadOutcome) -> HistoryReceipt:
            return HistoryReceipt(
                dataset.name,
                run.run_id,
                iso(run.instant),
                outcome.status,
                outcome.counts,
                list(outcome.schema_changes),
                keys=outcome.keys if run.dry_run else None,
                warnings=outcome.warnings,
            )

        outcome = self.target.load(load, run, finished)
        receipt = finished(outcome)
        if not run.dry_run:
            self._write_state(dataset, hist)
            self.log.success(dataset, run, outcome, receipt)
        return receipt

    def _overridden(self, dataset: ModelDataset) -> ModelDataset:
        rules = dataset.historization
        if self.asked.allow_empty:
            rules = rules.model_copy(update={"allow_empty_snapshot": True})
        if self.asked.max_delete_ratio is not None:
            rules = rules.model_copy(update={"max_delete_ratio": self.asked.max_delete_ratio})
        return dataset.model_copy(update={"historization": rules})

    def _adopted(self, dataset: ModelDataset) -> HistState | None:
        """The state that the table itself tells, where no lock file is left."""
        schema = self._schema(dataset)
        for name in names_of(dataset):
            stored = self.target.columns(schema, f"{name}_hist")
            if stored is not None:
                return adopted(dataset, name, stored, self.target.dialect)
        return None

    def _write_state(self, dataset: ModelDataset, hist: HistState) -> None:
        """The load is committed: a lock file that cannot be written is told, and read from the table next."""
        try:
            write_state(dataset, hist, self.model, self.folder, self.target)
        except BackstoryError as error:
            events.warning(str(error))

    def _decided(self, run: LoadRun, state: HistState | None, hist: HistState) -> tuple[LoadRun, HistState]:
        """What is to be done about another hash profile or other labels than those in force."""
        profile = schema_of(self.model, run.dataset).hash_profile
        before = state.hash_profile if state else None
        if before not in {None, profile} and self.asked.hash_change not in {"version", "rehash"}:
            raise Refused(
                "HASH_DEFINITION_CHANGED",
                f"{hist.target_dataset_name} was hashed by {before}, but the model says {profile}.",
                "Use `hash_change=version` for a new version of every record, or `hash_change=rehash` for "
                "none.",
            )
        # A rehash is also for a column that came or went, which every hash then covers or no longer does.
        rehash = self.asked.hash_change == "rehash" and state is not None
        partly = run.dataset.incremental_strategy == "merge" and not run.skip_base
        run = replace(run, rehash=rehash, rehash_base=partly and (rehash or before not in {None, profile}))
        labels, stored = _stored_labels(run.dataset.historization.state_labels), None
        if state is not None:
            stored = _stored_labels(state.state_labels)
        if stored not in {None, labels}:
            if not self.asked.relabel:
                raise Refused(
                    "LABELS_CHANGED",
                    f"{hist.target_dataset_name} has state labels that differ from the model's.",
                    "Use `relabel=True` to change the stored ones.",
                )
            run = replace(run, relabel=stored)
        update = {"hash_profile": profile, "state_labels": run.dataset.historization.state_labels}
        return run, hist.model_copy(update=update)


def _stored_labels(labels: StateLabels | None) -> StateLabels:
    return labels if labels and labels.mode == "stored" else StateLabels()


def _of_hash(dataset: ModelDataset, error: BackstoryError) -> BackstoryError:
    """The refusal of a number that the `hash_as` of its column cannot hold; any other error as it is."""
    columns = [each.name for each in dataset.target_columns if each.hash_as and each.active]
    foreign = isinstance(error, Failed) and any(words in error.message for words in MISFITS)
    if not columns or not foreign:
        return error
    return Refused(
        "HASH_VALUE",
        f"{dataset.name} has a number in {' or '.join(columns)} that its hash_as cannot hold.",
        "Nothing was written; widen hash_as, set hash: false, or fix the number at its source.",
        columns,
    )
