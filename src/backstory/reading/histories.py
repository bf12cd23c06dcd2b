"""The system columns of an event log, and what its rows mean by them.

The rows that a table had at a recorded time: what was known then.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from backstory.errors import Refused, UsageError
from backstory.model.instant import iso, parse_instant
from backstory.model.layout import Layout, layout_of
from backstory.model.table import Shape, TableName
from backstory.model.types import Kind
from backstory.model.versions_layout import KNOWN_FROM
from backstory.reading.lifetimes import LogKind
from backstory.stores.iceberg import snapshots
from backstory.stores.iceberg.literals import column, quote
from backstory.stores.iceberg.store import Store, StoredTable, shape_at
from backstory.stores.port import TableLike, require_columns
from backstory.strategies.events.terms import LETTERS, Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A table property: the names of the system columns, and whether every row is an event of its own.
SYSTEM_COLUMNS: Final = "backstory.odf.columns"
# Those without which no event can be read.
REQUIRED: Final = ("offset", "system_time", "event_time")


def system_columns(table: TableLike) -> Mapping[str, Any]:
    """The names of `offset`, `op`, `system_time`, `event_time`, `observed`; `events` is true of ledgers."""
    text = table.properties.get(SYSTEM_COLUMNS)
    if text is None:
        raise UsageError(
            "no-columns",
            f"{table.shape.table} does not name its system columns.",
            "Add its manifest again with `backstory add`.",
        )
    told: dict[str, Any] = json.loads(text)
    if table.rows:
        require_columns(table, *(told[each] for each in REQUIRED if each in told))
    return told


def own_columns(table: TableLike) -> frozenset[str]:
    """The columns that the source did not send; the event time is one of its own where the key names it."""
    own = {name for name in system_columns(table).values() if isinstance(name, str)}
    return frozenset(own - set(table.shape.key))


def log_kind(names: Mapping[str, Any], shape: Shape) -> LogKind:
    """What the events of a log are."""
    in_key = names["event_time"] in shape.key
    return LogKind(bool(names["events"]), names["op"] is not None, names["op"] is None and not in_key)


def identity_columns(names: Mapping[str, Any], shape: Shape) -> "list[Column]":
    """What makes events those of one record."""
    return [column(name) for name in identity_names(names, shape)]


def identity_names(names: Mapping[str, Any], shape: Shape) -> list[str]:
    """The columns that make events those of one record; in a ledger the time belongs to it."""
    extra = [names["event_time"]] if names["events"] and names["event_time"] not in shape.key else []
    return [*shape.key, *extra]


def instant_in(rows: "DataFrame", name: str) -> "Column":
    """The time in a column; a day begins at midnight, UTC, whatever zone the session has."""
    from pyspark.sql.functions import timestamp_seconds, unix_date
    from pyspark.sql.types import DateType

    dated = isinstance(rows.schema[name].dataType, DateType)
    return (
        timestamp_seconds(unix_date(column(name)).cast("bigint") * 86_400)
        if dated
        else column(name).cast("timestamp")
    )


def instant_sql(shape: Shape, name: str) -> str:
    """The instant in a column, in Spark SQL; a day begins at midnight, and a naive time is one, in UTC."""
    found, value = shape.column(name), quote(name)
    kind = None if found is None else found.type.kind
    if kind is Kind.NAIVE_DATE:
        return f"timestamp_seconds(CAST(unix_date({value}) AS BIGINT) * 86400)"
    if kind is Kind.NAIVE_DATETIME:
        since = f"timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01 00:00:00', {value})"
        return f"timestamp_micros({since})"
    return f"CAST({value} AS TIMESTAMP_LTZ)"


def op_sql(names: Mapping[str, Any]) -> str:
    """What an event does, by its code, in Spark SQL."""
    if names["op"] is not None:
        return quote(names["op"])
    if names["observed"] is None:
        return str(int(Op.APPEND))
    cases = (f"WHEN '{LETTERS[op]}' THEN {int(op)}" for op in (Op.APPEND, Op.RETRACT))
    return f"CASE {quote(names['observed'])} {' '.join(cases)} ELSE {int(Op.CORRECT_TO)} END"


def op_of(names: Mapping[str, Any]) -> "Column":
    """The same as a column."""
    from pyspark.sql.functions import expr

    return expr(op_sql(names))


Commit = TypeVar("Commit", bound="Dated")
CHANGING_LAYOUTS = {Layout.FIVETRAN_LIVE, Layout.FIVETRAN_HISTORY}


def source_at(store: Store, table: StoredTable, known_at: datetime | None) -> tuple[str, Shape]:
    """The stored rows by which a table answers for a recorded time, in Spark SQL, and their shape.

    None is now. On layout `versions` and of an event log all rows are read, which record themselves what was
    known; of any other table those of the newest commit not after the time, with the columns of then, and
    none before the first. Raises UsageError (`known-pruned`) where `versions` no longer records it, Refused
    (`snapshots-expired`) where the commit is gone.
    """
    name = store.sql_name(table.shape.table)
    if known_at is None or table.shape.layout is Layout.ODF:
        return name, table.shape
    if table.shape.layout is Layout.VERSIONS:
        require_knowledge(table, known_at)
        return name, table.shape
    snapshot = commit_at(snapshots.ancestry(table), table.shape.table, known_at)
    if snapshot is None:
        return f"(SELECT * FROM {name} LIMIT 0)", table.shape  # noqa: S608 - a name in quotes
    return f"{name} VERSION AS OF {snapshot.id}", shape_with_layout(
        shape_at(store, table, snapshot.schema_id)
    )


def shape_with_layout(shape: Shape) -> Shape:
    """An earlier shape with its layout of then: a sync mode may have changed since."""
    if shape.layout not in CHANGING_LAYOUTS:
        return shape
    then = layout_of(None, shape.table.name, frozenset(shape.names))
    return replace(shape, layout=Layout.FIVETRAN_LIVE if then is Layout.FOREIGN else then)


def require_knowledge(table: TableLike, known_at: datetime) -> None:
    """Raise UsageError if a table of layout `versions` was pruned of what it knew at this time (V90)."""
    since = table.properties.get(KNOWN_FROM)
    if since and known_at < parse_instant(since):
        raise UsageError(
            "known-pruned",
            f"What {table.shape.table} knew before {iso(parse_instant(since))} was pruned.",
            "Ask for a later known time.",
        )


class Dated(Protocol):
    """A commit with its time, and the one before it."""

    @property
    def committed_at(self) -> datetime:
        """When it was committed."""

    @property
    def parent(self) -> int | None:
        """The commit before it; None for the first."""


def commit_at(ancestry: Iterable[Commit], table: TableName, known_at: datetime) -> Commit | None:
    """The commit that made the rows of this time; None before the first, Refused where it is gone."""
    oldest = None
    for snapshot in ancestry:
        if snapshot.committed_at <= known_at:
            return snapshot
        oldest = snapshot
    if oldest is not None and oldest.parent is not None:
        raise Refused(
            "snapshots-expired",
            f"The commits of {table} before {iso(oldest.committed_at)} have expired.",
            "Ask for a later known time; `backstory log` lists the commits that are kept.",
        )
    return None
