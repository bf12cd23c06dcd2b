"""Questions about points in time as queries of any dialect (section 7.4).

Times are ISO text or aware datetimes. A time before the prune watermark is refused, because versions
that were valid then may be gone from the table.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from backstory.errors import UsageError
from backstory.model.instant import instant_of
from backstory.reading.statements.stored_history import (
    Key,
    Query,
    Shown,
    StoredHistory,
    Time,
    columns_of,
    select,
)
from backstory.stores.sql.dialects.dialect import Dialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KnownRun(Protocol):
    """What is known of a load: its instant, and the receipt of one that was successful."""

    @property
    def load_timestamp(self) -> datetime:
        """The instant of all that it wrote."""

    @property
    def receipt(self) -> Mapping[str, Any] | None:
        """What it told when it had ended."""


def as_of(history: StoredHistory, time: Time) -> Query:
    """The versions that were valid at a time, at most one of a record."""
    return select(
        history.dialect,
        columns_of(history, "h", history.names),
        f"FROM {history.table} AS h\nWHERE {valid(history, 'h', time)}",
    )


def as_of_run(history: StoredHistory, run_id: str, known: KnownRun | None) -> Query:
    """The versions that were valid when a run had ended; UsageError for a run that did not end well."""
    if known is None or known.receipt is None:
        raise UsageError(
            "unknown-run",
            f"No load {run_id!r} of {history.model.name} was successful.",
            "Name the run id of a successful load.",
        )
    return as_of(history, known.load_timestamp)


def current(history: StoredHistory) -> Query:
    """The open versions."""
    return select(
        history.dialect,
        columns_of(history, "h", history.names),
        f"FROM {history.table} AS h\nWHERE {history.ended('h')} IS NULL",
    )


def timeline(history: StoredHistory, key: Key) -> Query:
    """All versions of a record by their start, archived ones too, and how long it was away before each.

    `gap_before` is NULL where a version follows the one before it at once, and for the first one. It is
    an interval; on SQL Server, which has none, it is a number of microseconds.
    """
    started, ended = history.started("h"), history.ended("h")
    over = f"OVER (PARTITION BY {history.of('h', history.key)} ORDER BY {started})"
    before = f"LAG({ended}) {over}"
    gap = f"CASE WHEN {before} < {started} THEN {_difference(history.dialect, started, before)} END"
    return select(
        history.dialect,
        [*columns_of(history, "h", history.names), Shown("gap_before", gap)],
        f"FROM {history.everything} AS h\nWHERE {history.is_record('h', key)}\nORDER BY {started}",
    )


def _difference(dialect: Dialect, later: str, earlier: str) -> str:
    if dialect.SQLGLOT_NAME == "tsql":
        return f"DATEDIFF_BIG(MICROSECOND, {earlier}, {later})"
    return f"{later} - {earlier}"


def frame(spark: "SparkSession", query: Query) -> "DataFrame":
    """The rows of a query in the dialect of Spark."""
    return spark.sql(query.sql)


def valid(history: StoredHistory, alias: str, time: Time) -> str:
    """Whether a version was valid at a time."""
    literal = history.dialect.timestamp_literal(history.model.whole_at(instant_of(time)))
    started, ended = history.started(alias), history.ended(alias)
    return f"{started} <= {literal} AND ({ended} IS NULL OR {ended} > {literal})"
