"""Load the datasets of a model: base, history's schema, history (section 3)."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from backstory.doors.historize.columns import base_columns
from backstory.doors.historize.ddl import logical
from backstory.doors.historize.dialects.base import Dialect
from backstory.doors.historize.document import read_model
from backstory.doors.historize.lock import find_state, write_state
from backstory.doors.historize.model import (
    TECHNICAL,
    Column,
    Dataset,
    Datatype,
    HistState,
    Model,
    StateLabels,
)
from backstory.doors.historize.receipts import HistoryReceipt, Outcome, iso, refusal
from backstory.doors.historize.resolve import findings, is_hist, resolve, schema_of
from backstory.doors.historize.runs import Known, dataset_key, error_text
from backstory.doors.historize.scopes import delta_cutoff, hist_scope, increment_scope, source_of
from backstory.doors.historize.stage import stage_of
from backstory.doors.historize.statements import Load
from backstory.doors.historize.sync import sync_hist
from backstory.doors.historize.work import Run, Target
from backstory.errors import BackstoryError, Refused, TryAgain, UsageError
from backstory.model.instant import parse_instant

BEHIND = timedelta(seconds=1)
ATTEMPTS = 3

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks of a load.

    `hash_change` decides what a switched hash profile means: `version` lets every record have a new
    version, `rehash` computes the open versions' hashes anew. `relabel` gives stored states the
    model's labels. `allow_empty` and `max_delete_ratio` override the model's guards once.
    """

    dataset: str | None = None
    run_id: str | None = None
    load_timestamp: str | datetime | None = None
    skip_base: bool = False
    dry_run: bool = False
    allow_empty: bool = False
    max_delete_ratio: float | None = None
    hash_change: str | None = None
    relabel: bool = False


def open_model(path: str | Path) -> tuple[Model, Path]:
    """A model, resolved, and the folder that its files are relative to; UsageError for a wrong one."""
    written, document = read_model(Path(path))
    model = resolve(written, document)
    for finding in findings(model):
        log.info(finding)
    return model, Path(path).absolute().parent


def historized(model: Model, only: str | None) -> list[Dataset]:
    """The datasets to load, in the model's order; UsageError for an unknown name."""
    if only is not None and only not in {dataset.name for dataset in model.target_datasets}:
        names = ", ".join(dataset.name for dataset in model.target_datasets)
        raise UsageError("no-dataset", f"The model has no dataset {only!r}.", f"It has {names}.")
    return [
        dataset
        for dataset in model.target_datasets
        if (only is None or dataset.name == only)
        and dataset.historize
        and dataset.active
        and not is_hist(dataset)
    ]


def run_model(
    model: Model,
    folder: Path,
    target: Target,
    asked: Asked,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[HistoryReceipt]:
    """Load the datasets one after the other; one whose input failed is not begun (R28)."""
    batch = str(uuid.uuid4())
    run_id = asked.run_id or batch
    instant = _given(asked.load_timestamp)
    receipts: list[HistoryReceipt] = []
    failed: set[str] = set()
    for dataset in historized(model, asked.dataset):
        work = _Work(model, folder, target, asked, batch, run_id, instant, clock)
        upstream = _upstream(model, dataset) & failed
        receipt = work.blocked(dataset, min(upstream)) if upstream else work.receipt(dataset)
        if receipt.status in {"rejected", "failed"}:
            failed.add(_table(model, dataset))
        receipts.append(receipt)
    return receipts


def _given(instant: str | datetime | None) -> datetime | None:
    if instant is None or isinstance(instant, str):
        return None if instant is None else parse_instant(instant)
    if instant.tzinfo is None:
        raise UsageError(
            "naive-time", "The load timestamp has no zone.", "Give it one: datetime(…, tzinfo=UTC)."
        )
    return instant.astimezone(UTC)


def _table(model: Model, dataset: Dataset) -> str:
    return f"{schema_of(model, dataset).schema_name}.{dataset.name}"


def _upstream(model: Model, dataset: Dataset) -> set[str]:
    """The tables of the model that the dataset is loaded from, and those that they are loaded from."""
    by_table = {_table(model, each): each for each in model.target_datasets}
    by_table |= {f"{table}_hist": each for table, each in by_table.items()}
    found: set[str] = set()
    names = [dataset.input]
    while names:
        each = by_table.get(names.pop() or "")
        if each is not None and _table(model, each) not in found:
            found.add(_table(model, each))
            names.append(each.input)
    return found


@dataclass(frozen=True)
class _Work:
    """A batch, at one of its datasets."""

    model: Model
    folder: Path
    target: Target
    asked: Asked
    batch: str
    run_id: str
    instant: datetime | None
    clock: Callable[[], datetime]

    def receipt(self, dataset: Dataset) -> HistoryReceipt:
        """Load a dataset; a conflict is tried again with the same instant."""
        began = self.clock()
        run: Run | None = None
        try:
            with self.target.holding(dataset, self.run_id):
                known = (
                    self.target.known(self._schema(dataset), dataset, self.run_id)
                    if self.asked.run_id
                    else None
                )
                if known and known.receipt:
                    return HistoryReceipt(**known.receipt)
                run = self._run(dataset, known, began)
                for attempt in range(ATTEMPTS):
                    try:
                        return self._loaded(replace(run, attempt=run.attempt + attempt))
                    except TryAgain as busy:
                        log.warning(f"trying again: {busy}", dataset=dataset.name)
                        if attempt == ATTEMPTS - 1:
                            raise
        except BackstoryError as error:
            self._refused(dataset, run, began, error)
            return refusal(dataset.name, self.run_id, run.instant if run else None, error)
        raise AssertionError("unreachable")

    def _schema(self, dataset: Dataset) -> str:
        return schema_of(self.model, dataset).schema_name or dataset.target_schema

    def blocked(self, dataset: Dataset, upstream: str) -> HistoryReceipt:
        """The receipt of a dataset that is not begun, because what it is loaded from failed."""
        error = Refused(
            "BASE_NOT_LOADED",
            f"{dataset.name} is loaded from {upstream}, whose own load did not end well.",
            "Mend that one and run again.",
        )
        row = self._row(dataset, self.clock(), self.clock(), "skipped")
        self._log(
            "load_run_log",
            [
                {
                    **row,
                    "mode": "orchestration",
                    "run_kind": "orchestration",
                    "status_reason": "blocked_by_dependency",
                    "blocked_by": upstream,
                }
            ],
        )
        return refusal(dataset.name, self.run_id, None, error)

    def _run(self, dataset: Dataset, known: Known | None, began: datetime) -> Run:
        if known and self.instant and known.load_timestamp != self.instant:
            raise Refused(
                "OTHER_LOAD_TIMESTAMP",
                f"The run {self.run_id} has the load timestamp {iso(known.load_timestamp)}.",
                "Leave the timestamp out, or take another run id.",
            )
        instant = known.load_timestamp if known else self.instant or self._allocated(dataset)
        return Run(
            dataset,
            self.run_id,
            instant,
            began,
            attempt=known.attempt + 1 if known else 1,
            stage=stage_of(dataset, self.folder),
            cutoff=delta_cutoff(self.model, dataset, instant),
            skip_base=self.asked.skip_base,
            dry_run=self.asked.dry_run,
        )

    def _allocated(self, dataset: Dataset) -> datetime:
        """The clock's instant, raised a little where the clock is behind by at most a second."""
        now = self.clock()
        schema = self._schema(dataset)
        names = [dataset.hist_name, *(f"{name}_hist" for name in dataset.former_names)]
        newest = self.target.newest(schema, names)
        if newest is None or newest < now:
            return now
        if newest - now > BEHIND:
            raise Refused(
                "NON_MONOTONIC_TIMESTAMP",
                f"The clock says {iso(now)}, and {dataset.hist_name} knows {iso(newest)} already.",
                "Set the clock right, or give a load timestamp.",
            )
        return newest + timedelta(microseconds=1)

    def _loaded(self, run: Run) -> HistoryReceipt:
        dataset = self._overridden(run.dataset)
        state = find_state(dataset, self.folder) or self._adopted(dataset)
        hist = sync_hist(dataset, state, run.instant)
        assert hist is not None
        run, hist = self._decided(replace(run, dataset=dataset), state, hist)
        load = self._load(dataset, hist)
        if not run.dry_run:
            self.target.register(run)

        def finished(outcome: Outcome) -> HistoryReceipt:
            return HistoryReceipt(
                dataset.name,
                run.run_id,
                iso(run.instant),
                outcome.status,
                outcome.counts,
                list(outcome.schema_changes),
                keys=outcome.keys if run.dry_run else None,
            )

        outcome = self.target.load(load, run, finished)
        if not run.dry_run:
            write_state(dataset, hist, self.folder)
            self._log_success(dataset, run, outcome)
        return finished(outcome)

    def _overridden(self, dataset: Dataset) -> Dataset:
        rules = dataset.historization
        if self.asked.allow_empty:
            rules = rules.model_copy(update={"allow_empty_snapshot": True})
        if self.asked.max_delete_ratio is not None:
            rules = rules.model_copy(update={"max_delete_ratio": self.asked.max_delete_ratio})
        return dataset.model_copy(update={"historization": rules})

    def _adopted(self, dataset: Dataset) -> HistState | None:
        """The state that the table itself tells, where no lock file is left."""
        schema = self._schema(dataset)
        for name in (dataset.name, *dataset.former_names):
            stored = self.target.columns(schema, f"{name}_hist")
            if stored is not None:
                return adopted(dataset, name, stored, self.target.dialect)
        return None

    def _decided(self, run: Run, state: HistState | None, hist: HistState) -> tuple[Run, HistState]:
        """What is to be done about another hash profile or other labels than those in force."""
        profile = schema_of(self.model, run.dataset).hash_profile
        before = state.hash_profile if state else None
        if before not in {None, profile} and self.asked.hash_change not in {"version", "rehash"}:
            raise Refused(
                "HASH_DEFINITION_CHANGED",
                f"{hist.target_dataset_name} was hashed by {before}, the model says {profile}.",
                "Choose with --hash-change: `version` gives every record a new version, `rehash` none.",
            )
        # A rehash is also for a column that came or went, which every hash then covers or no longer does.
        run = replace(run, rehash=self.asked.hash_change == "rehash" and state is not None)
        labels, stored = _stored_labels(run.dataset.historization.state_labels), None
        if state is not None:
            stored = _stored_labels(state.state_labels)
        if stored not in {None, labels}:
            if not self.asked.relabel:
                raise Refused(
                    "LABELS_CHANGED",
                    f"{hist.target_dataset_name} has other state labels than the model.",
                    "Change the stored ones with --relabel.",
                )
            run = replace(run, relabel=stored)
        update = {"hash_profile": profile, "state_labels": run.dataset.historization.state_labels}
        return run, hist.model_copy(update=update)

    def _load(self, dataset: Dataset, hist: HistState) -> Load:
        dialect = self.target.dialect
        return prepared(self.model, dataset, hist, dialect)

    # Logs: what fails here never fails a load (R48)

    def _refused(self, dataset: Dataset, run: Run | None, began: datetime, error: BackstoryError) -> None:
        if self.asked.dry_run:
            return
        with _never_failing():
            if run:
                self.target.refused(run, error)
        status = {"status": "error", "status_reason": error.code, "error_message": error_text(error.message)}
        row = {**self._row(dataset, began, self.clock(), "error"), **status}
        self._log("load_run_log", [{**row, "attempt_no": run.attempt if run else 1}])
        step = {"step_no": 1, "step": "preflight", "rows_affected": 0, "duration_ms": 0}
        ids = {"dataset_key": dataset_key(dataset), "load_run_id": self.run_id}
        attempt = {"attempt_no": run.attempt if run else 1}
        self._log("hist_step_log", [{**ids, **attempt, **step, "status": "error", "error_code": error.code}])

    def _log_success(self, dataset: Dataset, run: Run, outcome: Outcome) -> None:
        row = self._row(dataset, run.began, self.clock(), "success")
        rows = sum(step.rows for step in outcome.steps if step.name != "merge")  # it is the four in one
        took = sum(step.milliseconds for step in outcome.steps)
        told = {"rows_affected": rows, "execution_ms": took, "attempt_no": run.attempt}
        self._log("load_run_log", [{**row, **told, "delta_cutoff": run.cutoff}])
        steps = [
            {
                "dataset_key": dataset_key(dataset),
                "load_run_id": run.run_id,
                "attempt_no": run.attempt,
                "step_no": number,
                "step": step.name,
                "rows_affected": step.rows,
                "duration_ms": step.milliseconds,
                "status": "success",
            }
            for number, step in enumerate(outcome.steps, start=1)
        ]
        self._log("hist_step_log", steps)

    def _row(self, dataset: Dataset, began: datetime, ended: datetime, status: str) -> dict[str, Any]:
        source = source_of(self.model, dataset)
        return {
            "batch_run_id": self.batch,
            "load_run_id": self.run_id,
            "target_schema": schema_of(self.model, dataset).schema_name,
            "target_dataset": dataset.hist_name,
            "target_system": self.target.dialect.DIALECT_NAME,
            "profile": self.model.environment,
            "run_kind": "sql",
            "source_dataset": source.name if source else dataset.input,
            "mode": "historize",
            "handle_deletes": dataset.handle_deletes,
            "historize": bool(dataset.historize),
            "started_at": began,
            "finished_at": ended,
            "status": status,
            "attempt_no": 1,
        }

    def _log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.asked.dry_run:
            return
        with _never_failing():
            self.target.log(table, rows)


def prepared(model: Model, dataset: Dataset, hist: HistState, dialect: Dialect) -> Load:
    """A dataset's load in a dialect: how it deletes, and which way the history is loaded."""
    rules = dataset.historization
    merges = rules.engine == "merge" or (
        rules.engine == "auto" and dialect.supports_hist_merge and not dialect.supports_transactions
    )
    if merges and not dialect.supports_hist_merge:
        raise UsageError(
            "wrong-engine", f"{dialect.DIALECT_NAME} has no MERGE for histories.", "Use engine: auto."
        )
    scope = increment_scope(model, dataset, dialect, "b") if dataset.incremental_strategy == "merge" else None
    full = dataset.incremental_strategy == "full"
    return Load(
        model,
        dataset,
        hist,
        dialect,
        delete_scope=scope,
        deletes_base=full or (dataset.handle_deletes and scope is not None),
        hist_scope=hist_scope(dataset, hist, dialect),
        closes_deleted=rules.snapshot == "full" or rules.delete_scope is not None,
        merges=merges,
    )


def adopted(dataset: Dataset, name: str, stored: Mapping[str, str], dialect: Dialect) -> HistState:
    """A history's metadata as its table tells it: every business column as if the base still had it."""
    base = {column.name: column for column in base_columns(dataset)}
    fixed = {role.value for role in TECHNICAL} | {f"{name}_hist_key", f"{name}_key", dataset.key}
    columns = []
    for column, type_ in stored.items():
        if column in fixed:
            continue
        known = base.get(column) or logical(type_, dialect)
        known = known or Column(target_column_name=column, datatype=Datatype.STRING)
        columns.append(
            known.model_copy(update={"target_column_name": column, "input": column, "nullable": True})
        )
    return HistState(
        target_dataset_name=f"{name}_hist",
        lineage_key=dataset.lineage_key or dataset.name,
        target_columns=tuple(columns),
    )


def _stored_labels(labels: StateLabels | None) -> StateLabels:
    return labels if labels and labels.mode == "stored" else StateLabels()


@contextmanager
def _never_failing() -> Iterator[None]:
    try:
        yield
    except BackstoryError as error:
        log.warning(f"the run log could not be written: {error}")


def exit_code(receipts: Sequence[HistoryReceipt]) -> int:
    """The highest-ranking failure: refused before later before failed; 0 if all is well."""
    codes = {receipt.exit_code for receipt in receipts}
    return next((code for code in (2, 3, 75, 1) if code in codes), 0)
