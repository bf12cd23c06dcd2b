"""One dataset's load as the places that run it know it."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ModelDataset, StateLabels
from backstory.doors.historize.receipts import HistoryReceipt, LoadOutcome
from backstory.doors.historize.runs import LoadTold, RegisteredRun, dataset_key
from backstory.doors.historize.stage import Stage
from backstory.errors import BackstoryError
from backstory.stores.sql.dialects.dialect import Dialect

LONGEST_PLACE = 64


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A run of one dataset: its id and instant, and what was asked for.

    `rehash` computes the hashes of open versions anew before the load, `rehash_base` those of the base's
    rows, which a delta does not all bring; `relabel` has the labels that stand in the table until now.
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
        """The dataset in the registry."""
        return dataset_key(self.schema, self.dataset)


def place_name(address: str) -> str:
    """A warehouse or database by a word of its address and a digest of all of it.

    Two places never have one name, wherever a model is loaded to.
    """
    words = re.findall(r"[A-Za-z0-9_-]+", re.sub(r"\.\w+$", "", address.rstrip("/")))
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    return "-".join([*words[-1:], digest])[-LONGEST_PLACE:]


class Target(ABC):
    """Where tables stand and loads run."""

    dialect: Dialect
    system: ClassVar[str] = ""
    # Whether runs that changed nothing are logged, too.
    logs_unchanged: ClassVar[bool] = True

    @property
    @abstractmethod
    def place(self) -> str:
        """The warehouse or database as a part of a file's name; see `place_name`."""

    @abstractmethod
    def columns(self, schema: str, table: str) -> Mapping[str, str] | None:
        """The columns of a table with their types; None if there is no such table."""

    @abstractmethod
    def holding(self, schema: str, dataset: ModelDataset, run_id: str) -> AbstractContextManager[None]:
        """While it lasts no other run loads the dataset; TryAgain (CONCURRENT_RUN) if one does now."""

    @abstractmethod
    def find_run(self, schema: str, dataset: ModelDataset, run_id: str) -> RegisteredRun | None:
        """What is registered of a run; a success only if what it wrote still stands in the tables."""

    @abstractmethod
    def newest(self, schema: str, tables: Sequence[str]) -> datetime | None:
        """The greatest start or end in the first of these tables that is there."""

    @abstractmethod
    def register(self, run: LoadRun) -> None:
        """Register a run that begins; without it no load starts."""

    @abstractmethod
    def load(
        self, load: Load, run: LoadRun, finished: Callable[[LoadOutcome], HistoryReceipt]
    ) -> LoadOutcome:
        """Base, schema and history, committed; with `dry_run` nothing is. Raises Refused with a code."""

    @abstractmethod
    def refused(self, run: LoadRun, error: BackstoryError) -> None:
        """Register how a run ended that did not end well."""

    @abstractmethod
    def log_rows(self, loads: Sequence[LoadTold]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The rows of log tables that tell of these loads."""

    @abstractmethod
    def log(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to a log table."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the target holds."""
