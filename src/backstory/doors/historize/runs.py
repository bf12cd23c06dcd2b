"""A run of one dataset, the targets that run it, and its entries in the registry and the logs (section 6)."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import structlog

from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ColumnRole, Model, ModelColumn, ModelDataset, StateLabels
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, LoadStep, status_of
from backstory.doors.historize.resolve import namespace_of, source_of
from backstory.doors.historize.stage import Stage
from backstory.errors import BackstoryError
from backstory.model.instant import iso
from backstory.stores.sql.columns import Datatype, instant_text
from backstory.stores.sql.dialect import Dialect
from backstory.strategies.scd2.transitions import BEGINNINGS, CLOSINGS, UNCHANGED

META = "meta"
LOADS, RUNS, STEPS = "load_run_log", "hist_run", "hist_step_log"
COUNTS = ("closed_changed", "closed_deleted", "inserted_changed", "inserted_new")
LEASE_MINUTES = 10
LONGEST_ERROR = 1_500


def _columns(text: str) -> list[ModelColumn]:
    """Parse columns from words of the form `name:type`.

    The default type is STRING, and `!` marks a column that is never NULL.
    """
    columns = []
    for word in text.split():
        name, _, kind = word.rstrip("!").partition(":")
        columns.append(
            ModelColumn(
                target_column_name=name, datatype=Datatype(kind or "STRING"), nullable=not word.endswith("!")
            )
        )
    return columns


TABLES: Mapping[str, list[ModelColumn]] = {
    LOADS: _columns(
        "batch_run_id! load_run_id! target_schema! target_dataset! target_system! profile! run_kind! "
        "source_system source_dataset source_object ingest_mode delta_cutoff:TIMESTAMP "
        "rows_extracted:BIGINT chunk_size:BIGINT mode! handle_deletes:BOOLEAN! historize:BOOLEAN! "
        "started_at:TIMESTAMP! finished_at:TIMESTAMP render_ms:BIGINT execution_ms:BIGINT sql_length:BIGINT "
        "rows_affected:BIGINT status! error_message attempt_no:BIGINT! status_reason blocked_by"
    ),
    RUNS: _columns(
        "dataset_key! load_run_id! load_timestamp:TIMESTAMP! base_version base_row_count:BIGINT engine! "
        "status! attempt_no:BIGINT! lease_until:TIMESTAMP closed_changed:BIGINT closed_deleted:BIGINT "
        "inserted_changed:BIGINT inserted_new:BIGINT unchanged:BIGINT error_code error_message "
        "started_at:TIMESTAMP! finished_at:TIMESTAMP receipt"
    ),
    STEPS: _columns(
        "dataset_key! load_run_id! attempt_no:BIGINT! step_no:BIGINT! step! rows_affected:BIGINT "
        "duration_ms:BIGINT status! error_code"
    ),
}


@dataclass(frozen=True, slots=True)
class LoadEntry:
    """The log entry of a load: its own row, the rows of its steps, and the registry's row for its run.

    If the load did not begin, its steps and its run are empty.
    """

    row: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]] = ()
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """A run in the registry: its instant and attempt, and the receipt if it succeeded."""

    load_timestamp: datetime
    attempt: int
    receipt: Mapping[str, Any] | None = None


def dataset_key(schema: str, dataset: ModelDataset) -> str:
    """The name of a dataset in the registry.

    It stays the same when the dataset is renamed. A run is identified by its warehouse or database, schema,
    dataset and run id (decision H6).
    """
    return f"{schema}.{dataset.lineage_key or f'{dataset.target_schema}:{dataset.name}'}"


def versions_remain(
    known: RegisteredRun,
    last_that_wrote: Callable[[datetime], datetime | None],
    has_version: Callable[[str], bool],
    dialect: Dialect,
) -> bool:
    """Whether the versions that a successful run began or ended are still stored.

    If the run wrote no versions, the versions of the last earlier run that wrote some are checked. If there
    is no such run, the history must be empty, or not younger than the run. `has_version` tests whether the
    history or its archive has a version that meets a condition. `last_that_wrote` returns the instant of the
    last run, at or before an instant, that began or ended versions.
    """
    counts, instant = (known.receipt or {})["counts"], known.load_timestamp
    wrote = any(count for name, count in counts.items() if name != UNCHANGED)
    wrote_at = instant if wrote else last_that_wrote(instant)
    started, moment = ColumnRole.STARTED, dialect.timestamp_literal(wrote_at or instant)
    if wrote_at:
        return has_version(f"{started} = {moment} OR {ColumnRole.ENDED} = {moment}")
    return has_version(f"{started} <= {moment}") or not has_version("1 = 1")


def error_text(message: str) -> str:
    """An error message for a log, shortened and on one line."""
    return re.sub(r"\s+", " ", message).strip()[:LONGEST_ERROR]


# The registry's columns, by the name of the statement.
_REGISTERED = dict(zip((*CLOSINGS, *BEGINNINGS), COUNTS, strict=True))


def registered_counts(outcome: LoadOutcome) -> dict[str, Any]:
    """The counts of a load, as columns of the registry."""
    rows = {step.name: step.rows for step in outcome.steps}
    return {
        "base_row_count": outcome.base,
        **{column: rows.get(name, 0) for name, column in _REGISTERED.items()},
        UNCHANGED: outcome.counts[UNCHANGED],
    }


LONGEST_PLACE = 64


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A run of one dataset: its id and instant, and its options.

    Before the load, `rehash` recomputes the hashes of open versions, and `rehash_base` recomputes the hashes
    of the base's rows. `relabel` contains the state labels to replace, as stored in the table.
    """

    dataset: ModelDataset
    schema: str
    run_id: str
    instant: datetime
    began: datetime
    attempt: int = 1
    stage: Stage | None = None
    cutoff: datetime | None = None
    skip_base: bool = False
    dry_run: bool = False
    rehash: bool = False
    rehash_base: bool = False
    relabel: StateLabels | None = None

    @property
    def key(self) -> str:
        """The name of the dataset in the registry."""
        return dataset_key(self.schema, self.dataset)

    def values(self, dialect: Dialect, pepper: str) -> dict[str, str]:
        """The SQL for each placeholder of the statements. `pepper` is SQL for the secret."""
        values = {
            "load_timestamp": dialect.timestamp_literal(self.instant),
            "load_timestamp_text": dialect.string_literal(instant_text(self.instant)),
            "load_run_id": dialect.string_literal(self.run_id),
            "pepper": pepper,
        }
        if self.cutoff:
            values["DELTA_CUTOFF"] = dialect.timestamp_literal(self.cutoff)
        return values

    def receipt(self, outcome: LoadOutcome) -> HistoryReceipt:
        """The receipt of the run. Only the receipt of a dry run contains keys."""
        return HistoryReceipt(
            self.dataset.name,
            self.run_id,
            iso(self.instant),
            outcome.status,
            outcome.counts,
            list(outcome.schema_changes),
            keys=outcome.keys if self.dry_run else None,
            warnings=outcome.warnings,
        )


def place_name(address: str) -> str:
    """A unique name for a warehouse or database: a word from its address, and a digest of the address."""
    words = re.findall(r"[A-Za-z0-9_-]+", re.sub(r"\.\w+$", "", address.rstrip("/")))
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    return "-".join([*words[-1:], digest])[-LONGEST_PLACE:]


class Target(ABC):
    """The warehouse or database that holds the tables and runs the loads."""

    dialect: Dialect
    # Whether runs that changed nothing are logged.
    logs_unchanged: ClassVar[bool] = True

    @property
    @abstractmethod
    def place(self) -> str:
        """The name of the warehouse or database for use in file names (see `place_name`)."""

    @abstractmethod
    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        """The columns of a table with their types, or None if the table does not exist."""

    @abstractmethod
    def hold(self, schema: str, dataset: ModelDataset, run_id: str) -> AbstractContextManager[None]:
        """Keep other runs from loading the dataset.

        Raises TryAgain (CONCURRENT_RUN) if another run is loading it.
        """

    @abstractmethod
    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> RegisteredRun | None:
        """The registered run, or None. A successful run is used only if the tables still have its changes."""

    @abstractmethod
    def newest_instant(self, schema: str, tables: Sequence[str]) -> datetime | None:
        """The latest start or end in the first of these tables that exists, or None."""

    def register(self, run: LoadRun, error: BackstoryError | None = None) -> None:  # noqa: B027 - optional
        """Register a run before its load starts, or its failure, unless commits are the registry."""

    @abstractmethod
    def load(self, load: Load, run: LoadRun) -> LoadOutcome:
        """Load the base, update the schema, load the history, and commit unless it is a dry run.

        Raises Refused if a check fails.
        """

    @abstractmethod
    def log_rows(self, loads: Sequence[LoadEntry]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The rows of these loads for each log table."""

    @abstractmethod
    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a log table."""


log = structlog.get_logger()


@dataclass(frozen=True)
class RunLog:
    """The log of a batch. It is written at the batch's end, except in a dry run.

    If the log cannot be written, the load still succeeds (R48).
    """

    model: Model
    target: Target
    batch: str
    run_id: str
    silent: bool
    clock: Callable[[], datetime]
    loads: list[LoadEntry] = field(default_factory=list)

    def add_blocked(self, dataset: ModelDataset, upstream: str) -> None:
        """Log a dataset whose load did not begin."""
        reason = {"mode": "orchestration", "run_kind": "orchestration"}
        reason |= {"status_reason": "blocked_by_dependency", "blocked_by": upstream}
        self.loads.append(LoadEntry({**self._row(dataset, self.clock(), "skipped"), **reason}))

    def add_failure(
        self, dataset: ModelDataset, run: LoadRun | None, began: datetime, error: BackstoryError
    ) -> None:
        """Log and register a failed load. A load that failed before its run began has no `run`."""
        if self.silent:
            return
        with _log_errors():
            if run:
                self.target.register(run, error)
        status = {"status": "error", "status_reason": error.code, "error_message": error_text(error.message)}
        row = {**self._row(dataset, began, "error"), **status, "attempt_no": run.attempt if run else 1}
        step = {**LoadStep("preflight").row(1, "error"), "error_code": error.code}
        instant = iso(run.instant) if run else None
        ended = {"status": status_of(error), "load_timestamp": instant, "dataset_key": self._key(dataset)}
        self.loads.append(LoadEntry(row, [step], ended))

    def add_success(self, run: LoadRun, outcome: LoadOutcome, receipt: HistoryReceipt) -> None:
        """Log a load and its steps."""
        row = self._row(run.dataset, run.began, "success")
        # The step `merge` repeats the rows of other steps.
        rows = sum(step.rows for step in outcome.steps if step.name != "merge")
        took = sum(step.milliseconds for step in outcome.steps)
        totals = {"rows_affected": rows, "execution_ms": took, "attempt_no": run.attempt}
        steps = [step.row(number) for number, step in enumerate(outcome.steps, start=1)]
        ended = {**receipt.to_dict(), "dataset_key": run.key, **registered_counts(outcome)}
        self.loads.append(LoadEntry({**row, **totals, "delta_cutoff": run.cutoff}, steps, ended))

    def _key(self, dataset: ModelDataset) -> str:
        return dataset_key(namespace_of(self.model, dataset), dataset)

    def _row(self, dataset: ModelDataset, began: datetime, status: str) -> dict[str, Any]:
        source = source_of(self.model, dataset)
        return {
            "batch_run_id": self.batch,
            "load_run_id": self.run_id,
            "target_schema": namespace_of(self.model, dataset),
            "target_dataset": dataset.hist_name,
            "target_system": self.target.dialect.DIALECT_NAME,
            "profile": self.model.environment,
            "run_kind": "sql",
            "source_dataset": source.name if source else dataset.input,
            "mode": "historize",
            "handle_deletes": dataset.handle_deletes,
            "historize": bool(dataset.historize),
            "started_at": began,
            "finished_at": self.clock(),
            "status": status,
            "attempt_no": 1,
        }

    def write(self, *, changed: bool) -> None:
        """Write the log of the batch, with one write for each table.

        A batch that changed nothing is logged only on a database, whose registry has the batch's runs anyway.
        """
        if self.loads and not self.silent and (changed or self.target.logs_unchanged):
            for table, rows in self.target.log_rows(self.loads).items():
                with _log_errors():
                    self.target.log(table, rows)


@contextmanager
def _log_errors() -> Iterator[None]:
    """Log errors as warnings instead of raising them."""
    try:
        yield
    except BackstoryError as error:
        log.warning(f"the run log could not be written completely: {error}")
