"""What the logs say of a load; what fails here never fails one (R48)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog

from backstory.doors.historize.model import Model, ModelDataset
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome, status_of
from backstory.doors.historize.resolve import namespace_of
from backstory.doors.historize.runs import LoadTold, counted, dataset_key, error_text
from backstory.doors.historize.scopes import source_of
from backstory.doors.historize.work import LoadRun, Target
from backstory.errors import BackstoryError
from backstory.model.instant import iso

log = structlog.get_logger()


@dataclass(frozen=True)
class RunLog:
    """The log of a batch, written at its end; silent in a dry run."""

    model: Model
    target: Target
    batch: str
    run_id: str
    silent: bool
    clock: Callable[[], datetime]
    loads: list[LoadTold] = field(default_factory=list)

    def blocked(self, dataset: ModelDataset, upstream: str) -> None:
        """A dataset that was not begun."""
        told = {"mode": "orchestration", "run_kind": "orchestration"}
        told |= {"status_reason": "blocked_by_dependency", "blocked_by": upstream}
        self.loads.append(LoadTold({**self._row(dataset, self.clock(), "skipped"), **told}))

    def refused(
        self, dataset: ModelDataset, run: LoadRun | None, began: datetime, error: BackstoryError
    ) -> None:
        """A load that was not made; `run` is None where it did not come to be one."""
        if self.silent:
            return
        with _never_failing():
            if run:
                self.target.refused(run, error)
        status = {"status": "error", "status_reason": error.code, "error_message": error_text(error.message)}
        row = {**self._row(dataset, began, "error"), **status, "attempt_no": run.attempt if run else 1}
        step = {"step_no": 1, "step": "preflight", "rows_affected": 0, "duration_ms": 0}
        step |= {"status": "error", "error_code": error.code}
        instant = iso(run.instant) if run else None
        ended = {"status": status_of(error), "load_timestamp": instant, "dataset_key": self._key(dataset)}
        self.loads.append(LoadTold(row, [step], ended))

    def success(
        self, dataset: ModelDataset, run: LoadRun, outcome: LoadOutcome, receipt: HistoryReceipt
    ) -> None:
        """A load and its steps."""
        row = self._row(dataset, run.began, "success")
        rows = sum(step.rows for step in outcome.steps if step.name != "merge")  # it is the four in one
        took = sum(step.milliseconds for step in outcome.steps)
        told = {"rows_affected": rows, "execution_ms": took, "attempt_no": run.attempt}
        steps = [
            {
                "step_no": number,
                "step": step.name,
                "rows_affected": step.rows,
                "duration_ms": step.milliseconds,
                "status": "success",
            }
            for number, step in enumerate(outcome.steps, start=1)
        ]
        ended = {**receipt.to_dict(), "dataset_key": self._key(dataset), **counted(outcome)}
        self.loads.append(LoadTold({**row, **told, "delta_cutoff": run.cutoff}, steps, ended))

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
        """Write what the batch has told, at most once a table; nothing where it changed nothing.

        On a database, whose registry has the run anyway, a run that changed nothing is logged as well.
        """
        if self.loads and not self.silent and (changed or self.target.logs_unchanged):
            for table, rows in self.target.log_rows(self.loads).items():
                with _never_failing():
                    self.target.log(table, rows)


@contextmanager
def _never_failing() -> Iterator[None]:
    try:
        yield
    except BackstoryError as error:
        log.warning(f"the run log could not be written completely: {error}")
