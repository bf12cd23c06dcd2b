"""The request for a load, and the receipt of its result (design: interface, section 5)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from attrs import field as attrs_field
from attrs import frozen

from backstory.errors import BackstoryError, Failed
from backstory.model.instant import iso, optional_instant
from backstory.model.receipt import IF_ANY, Receipt
from backstory.strategies.scd2.transitions import OUTCOMES, UNCHANGED

HashChange = Literal["version", "rehash"]


@frozen(kw_only=True)
class LoadRequest:
    """The options of a load. `allow_empty` and `max_delete_ratio` override the model's guards once.

    Attributes:
        dataset: Load only this dataset.
        run_id: Name of the run. Default: a new one.
        load_timestamp: The time of the run, ISO 8601. Default: now.
        skip_base: Keep the base tables as they are, and load only their histories.
        allow_empty: Accept an empty stage or base, which closes every version.
        max_delete_ratio: Largest share of the open versions that this load may close as deleted, 0 to 1.
            Default: the share in the model.
        hash_change: After a change of the hash profile, write a new version of every record (version), or
            only new hashes (rehash).
        relabel: Change the stored state labels to the labels of the model.
        dry_run: Print counts and keys, and change nothing.
    """

    dataset: str | None = None
    run_id: str | None = None
    load_timestamp: datetime | None = attrs_field(default=None, converter=optional_instant)
    skip_base: bool = False
    allow_empty: bool = False
    max_delete_ratio: float | None = None
    hash_change: HashChange | None = None
    relabel: bool = False
    dry_run: bool = False


@frozen(kw_only=True)
class HistorizeRequest(LoadRequest):
    """A model, the target of its loads, and the options of `historize`.

    Attributes:
        dialect: spark, duckdb, postgres, sqlserver (with `sql=True` only), or a registered one.
        url: Address of the database: duckdb:///path/file.duckdb, postgresql://user@host:port/database.
        sql: Print the statements, with placeholders, and change nothing.
    """

    model: str | Path = attrs_field(kw_only=False)
    dialect: str | None = None
    url: str | None = None
    sql: bool = False


Status = Literal["success", "unchanged", "rejected", "failed"]


@dataclass(frozen=True, slots=True)
class LoadStep:
    """A step of a load: its rows, and its duration in milliseconds."""

    name: str
    rows: int = 0
    milliseconds: int = 0

    def row(self, number: int, status: str = "success") -> dict[str, Any]:
        """The step as a row of the log, without the columns that identify its load."""
        return {
            "step_no": number,
            "step": self.name,
            "rows_affected": self.rows,
            "duration_ms": self.milliseconds,
            "status": status,
        }


def milliseconds_since(began: float) -> int:
    """The milliseconds since a time of `time.monotonic`."""
    return round((time.monotonic() - began) * 1000)


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The number of records by outcome, the schema changes, and the steps.

    `base` is the number of base rows. `changed_base` is the number of base rows that were written or removed.
    `warnings` report writes to the history by other programs since the last load.
    """

    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    schema_changes: Sequence[str] = ()
    steps: Sequence[LoadStep] = ()
    base: int = 0
    changed_base: int = 0
    keys: Mapping[str, Sequence[object]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def status(self) -> Status:
        """`unchanged` if nothing was written, else `success`."""
        wrote = any(self.counts[name] for name in OUTCOMES if name != UNCHANGED)
        return "success" if wrote or self.schema_changes or self.changed_base else "unchanged"


@dataclass(frozen=True, slots=True, repr=False)
class HistoryReceipt(Receipt):
    """The receipt of one dataset's load.

    `load_timestamp` is an instant in UTC as ISO text, or None if the load ended before it had an instant. A
    dry run also has up to ten `keys` for each outcome. `warnings` report writes to the history by other
    programs since the last load.
    """

    dataset: str
    run_id: str
    load_timestamp: str | None
    status: Status
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    schema_changes: Sequence[str] = ()
    error: BackstoryError | None = None
    keys: Mapping[str, Sequence[object]] | None = field(default=None, metadata=IF_ANY)
    warnings: Sequence[str] = field(default=(), metadata=IF_ANY)


def stored_receipt(stored: Mapping[str, Any]) -> HistoryReceipt:
    """Parse the receipt that was stored with a run. Unknown fields are ignored."""
    known = {receipt_field.name for receipt_field in fields(HistoryReceipt)}
    return HistoryReceipt(**{name: value for name, value in stored.items() if name in known})


def status_of(error: BackstoryError) -> Status:
    """The status of a load that failed with this error."""
    return "failed" if isinstance(error, Failed) else "rejected"


def refusal(dataset: str, run_id: str, instant: datetime | None, error: BackstoryError) -> HistoryReceipt:
    """The receipt of a load that was refused or failed."""
    timestamp = None if instant is None else iso(instant)
    return HistoryReceipt(dataset, run_id, timestamp, status_of(error), error=error)
