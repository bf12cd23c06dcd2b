"""One dataset's load as the places that run it know it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from backstory.doors.historize.dialects.dialect import Dialect
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import Dataset, StateLabels
from backstory.doors.historize.receipts import HistoryReceipt, Outcome
from backstory.doors.historize.runs import Known, dataset_key
from backstory.doors.historize.stage import Stage
from backstory.errors import BackstoryError


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one dataset: its id and instant, and what was asked for.

    `rehash` computes the hashes of open versions anew before the load, `rehash_base` those of the base's
    rows, which a delta does not all bring; `relabel` has the labels that stand in the table until now.
    """

    dataset: Dataset
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


def run_row(run: Run, engine: str, status: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """A run's row in the registry."""
    return {
        "dataset_key": dataset_key(run.dataset),
        "load_run_id": run.run_id,
        "load_timestamp": run.instant,
        "engine": engine,
        "status": status,
        "attempt_no": run.attempt,
        "started_at": run.began,
        "finished_at": None if status == "running" else datetime.now(UTC),
        **more,
    }


class Target(ABC):
    """Where tables stand and loads run."""

    dialect: Dialect
    system: ClassVar[str] = ""

    @abstractmethod
    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        """The columns of a table with their types; None if there is no such table."""

    @abstractmethod
    def holding(self, dataset: Dataset, run_id: str) -> AbstractContextManager[None]:
        """While it lasts no other run loads the dataset; TryAgain (CONCURRENT_RUN) if one does now."""

    @abstractmethod
    def known(self, schema: str, dataset: Dataset, run_id: str) -> Known | None:
        """What is registered of a run."""

    @abstractmethod
    def newest(self, schema: str, tables: Sequence[str]) -> datetime | None:
        """The greatest start or end in the first of these tables that is there."""

    @abstractmethod
    def register(self, run: Run) -> None:
        """Register a run that begins; without it no load starts."""

    @abstractmethod
    def load(self, load: Load, run: Run, finished: Callable[[Outcome], HistoryReceipt]) -> Outcome:
        """Base, schema and history, committed; with `dry_run` nothing is. Raises Refused with a code."""

    @abstractmethod
    def refused(self, run: Run, error: BackstoryError) -> None:
        """Register how a run ended that did not end well."""

    @abstractmethod
    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a log table."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the target holds."""
