"""Queries about a model's history in a database, in any dialect (sections 7.1, 7.2 and 7.4).

Times are ISO text or aware datetimes. A time before the prune watermark is refused, because versions that
were valid then may have been removed. Queries by effective time still consider pruned versions, because a
later load did not make them untrue.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from backstory.errors import UsageError
from backstory.model.instant import instant_of, iso
from backstory.model.layout import STATE, VALID_FROM, VALID_TO
from backstory.model.table import Dating, History, Labels
from backstory.model.types import MAX_PRECISION, ColumnType, Kind
from backstory.reading.lifetimes import TRUE_AT
from backstory.reading.options import exact_value
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.stores.sql.dialect import Dialect, SqlNames
from backstory.stores.sql.engine import Engine
from backstory.strategies.scd2.transitions import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIME, _UUID = ColumnType(Kind.STRING, foreign="time"), ColumnType(Kind.STRING, foreign="uuid")
# Types by the first word of their names in databases. The times of a model are in UTC in every database.
_NAMES: Final = {
    "smallint": ColumnType(Kind.SHORT),
    "integer": ColumnType(Kind.INT),
    "bigint": ColumnType(Kind.LONG),
    "real": ColumnType(Kind.FLOAT),
    "float": ColumnType(Kind.FLOAT),
    "double": ColumnType(Kind.DOUBLE),
    "boolean": ColumnType(Kind.BOOLEAN),
    "date": ColumnType(Kind.NAIVE_DATE),
    "timestamp": ColumnType(Kind.UTC_DATETIME),
    "time": _TIME,
    "blob": ColumnType(Kind.BINARY),
    "bytea": ColumnType(Kind.BINARY),
    "uuid": _UUID,
}
_DECIMAL: Final = re.compile(r"(?:decimal|numeric)\((\d+),(\d+)\)")


def database_type(sql_type: str) -> ColumnType:
    """The type that a database's type name denotes, or text if the name is unknown."""
    name = sql_type.lower()
    if parts := _DECIMAL.fullmatch(name):
        return ColumnType(Kind.DECIMAL, int(parts[1]), int(parts[2]))
    return _NAMES.get(re.split(r"\W", name)[0], ColumnType(Kind.STRING))


def key_type(column: SqlColumn) -> ColumnType:
    """The type of a model's column."""
    decimal = f"decimal({column.decimal_precision or MAX_PRECISION},{column.decimal_scale or 0})"
    names = {Datatype.FLOAT: "double", Datatype.BINARY: "blob", Datatype.DECIMAL: decimal}
    return database_type(names.get(column.datatype, column.datatype.value))


def key_literal(dialect: Dialect, name: str, key_value: object, type_: ColumnType) -> str:
    """A key column's value as an SQL literal. Raises UsageError if it does not fit the type."""
    value: Any = exact_value(name, key_value, type_)
    if isinstance(value, bytes):
        raise UsageError(
            "other-key",
            f"Key column {name} holds bytes, which cannot be named in a database.",
            "Use `current` without a key.",
        )
    if isinstance(value, float):
        return dialect.string_literal(repr(value))
    return f"{value:f}" if isinstance(value, Decimal) else dialect.render_literal(value)


LONGEST_NAME = 63
Key = Mapping[str, object] | str | int
Time = str | date  # ISO text, an aware datetime, or a date for its first instant


def in_utc(time: datetime) -> datetime:
    """A time from a database, in UTC. A time without a zone is in UTC already."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class Query(NamedTuple):
    """A query, and the names of its columns."""

    sql: str
    columns: tuple[str, ...]


def fetch_rows(engine: Engine, query: Query) -> list[dict[str, Any]]:
    """The rows of a query, as dictionaries. Times are in UTC."""
    return [
        {
            name: in_utc(value) if isinstance(value, datetime) else value
            for name, value in zip(query.columns, row, strict=True)
        }
        for row in engine.fetch_all(query.sql)
    ]


ResultColumn = tuple[str, str]  # a column of a result: its name and its SQL


@dataclass(frozen=True)
class StoredHistory(SqlNames):
    """A history table in one dialect. `model` describes the history.

    `columns` are all its columns, including retired columns. `catalog` precedes the schema in names if a
    session has several catalogs.
    """

    model: History
    columns: tuple[SqlColumn, ...]
    catalog: str | None = None

    @property
    def schema(self) -> str:
        """The schema of the history's tables."""
        return self.model.shape.table.schema

    @cached_property
    def table(self) -> str:
        """The history table."""
        return self.name_with_suffix("")

    @cached_property
    def archive(self) -> str:
        """The table of pruned versions."""
        return self._qualify(self.model.archive_name)

    def name_with_suffix(self, suffix: str) -> str:
        """The table or view with the history's name and this suffix."""
        return self._qualify(f"{self.model.name}{suffix}")

    def _qualify(self, name: str) -> str:
        name = self.dialect.render_table_identifier(self.schema, name)
        return f"{self.name(self.catalog)}.{name}" if self.catalog else name

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [column.name for column in self.columns]

    @cached_property
    def key(self) -> str:
        """The column that identifies a record."""
        return self.model.record_key

    @cached_property
    def attributes(self) -> list[SqlColumn]:
        """The user's columns outside the key, including retired ones."""
        return [self.column(each.name) for each in self.model.attributes]

    def column(self, name: str) -> SqlColumn:
        """The column with this name, which must exist."""
        return next(column for column in self.columns if column.name == name)

    @property
    def watermark(self) -> datetime | None:
        """The instant from which the history is complete, or None if nothing was pruned."""
        return self.model.whole_since

    def start_of(self, alias: str) -> str:
        """The start of a version."""
        return self.of(alias, self.model.span.start)

    def end_of(self, alias: str) -> str:
        """The end of a version; NULL while it is open."""
        return self.of(alias, self.model.span.end)

    @cached_property
    def all_versions(self) -> str:
        """The relation with all versions, including pruned ones: a name, or a query in parentheses."""
        return f"(\n{self.union()}\n)" if self.model.archive else self.table

    def union(self) -> str:
        """The query for all versions. A version that is in both tables counts once."""
        current = ", ".join(self.of("h", name) for name in self.names)
        pruned = ", ".join(self._in_archive(column) for column in self.columns)
        version = self.model.version_key
        archived = self._in_archive(self.column(version))
        both = f"SELECT 1 FROM {self.table} AS b WHERE {self.of('b', version)} = {archived}"
        return (
            f"SELECT {current} FROM {self.table} AS h\nUNION ALL\n"
            f"SELECT {pruned} FROM {self.archive} AS a WHERE NOT EXISTS ({both})"
        )

    def _in_archive(self, column: SqlColumn) -> str:
        """The column in the archive, if necessary by a former name, or NULL for a column added later."""
        archive = self.model.archive
        there = archive.columns if archive else None
        names = (column.name, *reversed(column.former_names))
        name = next((each for each in names if there is None or each in there), None)
        return self.null_of(column) if name is None else self.of("a", name)

    def is_record(self, alias: str, key: Key, renamed: Mapping[str, str] | None = None) -> str:
        """SQL for whether a row belongs to the record with this key. `renamed` maps columns to new names."""
        names = self.model.shape.key
        values = key if isinstance(key, Mapping) else {names[0]: key}
        if set(values) != set(names):
            raise UsageError(
                "other-key",
                f"The key of {self.model.name} is ({', '.join(names)}).",
                "Give a value for each key column.",
            )
        pairs = [
            (self.of(alias, (renamed or {}).get(name, name)), self._literal(self.column(name), values[name]))
            for name in names
        ]
        return " AND ".join(f"NOT ({self.dialect.null_safe_ne(*pair)})" for pair in pairs)

    def _literal(self, column: SqlColumn, value: Any) -> str:
        """The SQL literal of a key column's value, possibly as text. Raises UsageError if it does not fit."""
        if value is None:
            return self.null_of(column)
        try:
            literal = key_literal(self.dialect, column.name, value, key_type(column))
        except UsageError as stop:
            raise UsageError("wrong-key", stop.message, stop.remedy) from None
        return self.dialect.cast_expression(literal, self.dialect.type_of(column))

    def null_of(self, column: SqlColumn) -> str:
        """A NULL of the column's type."""
        return self.dialect.cast_expression("NULL", self.dialect.type_of(column))

    def instant(self, time: Time) -> str:
        """A time as an SQL literal."""
        return self.dialect.timestamp_literal(instant_of(time))


def select(dialect: Dialect, shown: Sequence[ResultColumn], rest: str) -> Query:
    """The query `SELECT … rest`. Names that are already taken get a number."""
    names = distinct(name for name, _ in shown)
    columns = zip((sql for _, sql in shown), map(dialect.render_identifier, names), strict=True)
    listed = ",\n  ".join(f"{sql} AS {name}" for sql, name in columns)
    return Query(f"SELECT\n  {listed}\n{rest}", names)


def distinct(names: Iterable[str], longest: int = LONGEST_NAME) -> tuple[str, ...]:
    """The names, short enough for any database. A name that is already taken gets a number."""
    taken: list[str] = []
    for name in names:
        free, number = name[:longest], 1
        while free in taken:
            number += 1
            end = f"_{number}"
            free = f"{name[: longest - len(end)]}{end}"
        taken.append(free)
    return tuple(taken)


def columns_of(
    history: StoredHistory, alias: str, names: Iterable[str], before: str = ""
) -> list[ResultColumn]:
    """The columns with these names, shown with the prefix `before`."""
    return [(f"{before}{name}", history.of(alias, name)) for name in names]


class KnownRun(Protocol):
    """A load: its instant, and its receipt if it succeeded."""

    @property
    def load_timestamp(self) -> datetime:
        """The instant of everything that the load wrote."""

    @property
    def receipt(self) -> Mapping[str, Any] | None:
        """The receipt of the load, or None if it did not succeed."""


def _versions_where(history: StoredHistory, condition: str) -> Query:
    rows = f"FROM {history.table} AS h\nWHERE {condition}"
    return select(history.dialect, columns_of(history, "h", history.names), rows)


def as_of(history: StoredHistory, time: Time) -> Query:
    """The versions that were valid at a time, at most one for each record."""
    return _versions_where(history, is_valid_at(history, "h", time))


def as_of_run(history: StoredHistory, run_id: str, known: KnownRun | None) -> Query:
    """The versions that were valid after a run. Raises UsageError if the run did not succeed."""
    if known is None or known.receipt is None:
        raise UsageError(
            "unknown-run",
            f"No load {run_id!r} of {history.model.name} was successful.",
            "Name the run id of a successful load.",
        )
    return as_of(history, known.load_timestamp)


def current(history: StoredHistory) -> Query:
    """The open versions."""
    return _versions_where(history, f"{history.end_of('h')} IS NULL")


def timeline(history: StoredHistory, key: Key) -> Query:
    """All versions of a record, including archived ones, sorted by their start, and the gap before each.

    `gap_before` is NULL for the first version and for a version that follows at once. It is an interval. On
    SQL Server, which has no intervals, it is a number of microseconds.
    """
    start = history.start_of("h")
    over = f"OVER (PARTITION BY {history.of('h', history.key)} ORDER BY {start})"
    before = f"LAG({history.end_of('h')}) {over}"
    counted = history.dialect.SQLGLOT_NAME == "tsql"
    length = f"DATEDIFF_BIG(MICROSECOND, {before}, {start})" if counted else f"{start} - {before}"
    gap = ("gap_before", f"CASE WHEN {before} < {start} THEN {length} END")
    rows = f"FROM {history.all_versions} AS h\nWHERE {history.is_record('h', key)}\nORDER BY {start}"
    return select(history.dialect, [*columns_of(history, "h", history.names), gap], rows)


def frame(spark: "SparkSession", query: Query) -> "DataFrame":
    """Run a query in Spark's dialect."""
    return spark.sql(query.sql)


def is_valid_at(history: StoredHistory, alias: str, time: Time) -> str:
    """SQL for whether a version was valid at a time."""
    literal = history.dialect.timestamp_literal(history.model.require_unpruned(instant_of(time)))
    return TRUE_AT.format(started=history.start_of(alias), ended=history.end_of(alias), at=literal)


_MIDNIGHT = " 00:00:00.000000+00:00"


def effective(history: StoredHistory, dating: Dating, known_at: Time | None = None) -> Query:
    """The versions with `effective_from` and `effective_to`, as known at a time, by default now.

    If several versions of a record are effective from the same time, the newest is used. The intervals of a
    record do not overlap, and only the last one can be open.
    """
    # The query's own names: the time, its number among equal times, and the end of a deleted record.
    own = distinct([*history.names, "effective_from", "effective_to", "nth", "gone"])[-4:]
    begin, end, nth, gone = map(history.name, own)
    key, started, ended = history.of("h", history.key), history.start_of("h"), history.end_of("h")
    deleted, known = f"{history.of('h', STATE)} = {history.text(history.model.labels.deleted)}", ""
    if known_at is not None:
        literal = history.instant(known_at)
        known, deleted = f"\nWHERE {started} <= {literal}", f"{deleted} AND {ended} <= {literal}"
    column = history.column(dating.column)
    value = f"COALESCE({_on_axis(history, dating, history.of('h', column.name), column.datatype)}, "
    value += f"{_on_axis(history, dating, started, Datatype.TIMESTAMP)})"

    def columns(alias: str) -> str:
        return ", ".join(history.of(alias, name) for name in history.names)

    inner = (
        f"SELECT {columns('h')}, {value} AS {begin},\n"
        f"  ROW_NUMBER() OVER (PARTITION BY {key}, {value} ORDER BY {started} DESC) AS {nth},\n"
        f"  FIRST_VALUE(CASE WHEN {deleted} THEN {_on_axis(history, dating, ended, Datatype.TIMESTAMP)} END)"
        f" OVER (PARTITION BY {key} ORDER BY {started} DESC) AS {gone}\n"
        f"FROM {history.all_versions} AS h{known}"
    )
    following = f"LEAD(d.{begin}) OVER (PARTITION BY {history.of('d', history.key)} ORDER BY d.{begin})"
    middle = (
        f"SELECT {columns('d')}, d.{begin}, COALESCE({following}, d.{gone}) AS {end}\n"
        f"FROM (\n{inner}\n) AS d\nWHERE d.{nth} = 1"
    )
    times = [("effective_from", f"e.{begin}"), ("effective_to", f"e.{end}")]
    rows = f"FROM (\n{middle}\n) AS e\nWHERE e.{end} IS NULL OR e.{begin} < e.{end}"
    return select(history.dialect, [*columns_of(history, "e", history.names), *times], rows)


def _on_axis(history: StoredHistory, dating: Dating, sql: str, datatype: Datatype) -> str:
    """SQL for a date or an instant in the granularity of `dating`. Days are in UTC."""
    target = Datatype.DATE if dating.granularity == "date" else Datatype.TIMESTAMP
    if datatype is target:
        return sql
    dialect = history.dialect
    text = dialect.canonical_text(sql, datatype)
    midnight = dialect.concat_expression([text, dialect.string_literal(_MIDNIGHT)])
    day = f"substring({text}, 1, 10)" if target is Datatype.DATE else midnight
    type_ = dialect.map_logical_type(target)
    usual = f"{text} LIKE '____-__-__%' AND {text} NOT LIKE '0000%'"  # neither infinite nor before the year 1
    cast = dialect.cast_expression
    return f"CASE WHEN {usual} THEN {cast(day, type_)} ELSE {cast(sql, type_)} END"


_FIRST_START = "first_started_at"


def _join_first_starts(history: StoredHistory) -> str:
    """The join of the versions `h` with the first start of their records, including pruned versions."""
    key = history.name(history.key)
    first = (
        f"SELECT e.{key}, MIN({history.start_of('e')}) AS {_FIRST_START} FROM {history.all_versions} AS e"
        f" GROUP BY e.{key}"
    )
    return f"JOIN (\n{first}\n) AS f ON f.{key} = h.{key}"


def labeled(history: StoredHistory, labels: Labels) -> Query:
    """The versions with other labels for their states. Stored values do not change.

    An open version of a record that existed before gets the label `reappeared`.
    """
    stored, text, state = history.model.labels, history.text, history.of("h", STATE)
    pairs = ((stored.new, labels.new), (stored.changed, labels.changed), (stored.deleted, labels.deleted))
    again = f"{state} = {text(stored.new)} AND f.{_FIRST_START} < {history.start_of('h')}"
    cases = [f"WHEN {again} THEN {text(labels.reappeared)}"]
    cases += [f"WHEN {state} = {text(old)} THEN {text(new)}" for old, new in pairs]
    label = f"CASE {' '.join(cases)} ELSE {state} END"
    shown = [(name, label if name == STATE else history.of("h", name)) for name in history.names]
    return select(history.dialect, shown, f"FROM {history.table} AS h\n{_join_first_starts(history)}")


def join_as_of(
    child: StoredHistory, parent: StoredHistory, fk: str, time: Time, how: Literal["left", "inner"] = "left"
) -> Query:
    """The child's versions valid at a time, with the parent's version in the columns `parent_<name>`."""
    _require_foreign_key(child, fk)
    side = f"(SELECT * FROM {parent.table} AS p WHERE {is_valid_at(parent, 'p', time)})"
    return _join(child, parent, fk, f"{how.upper()} JOIN {side}", is_valid_at(child, "c", time))


def join_valid(child: StoredHistory, parent: StoredHistory, fk: str, since: Time | None = None) -> Query:
    """Each pair of versions of a child and its parent that were valid at the same time.

    `valid_from` and `valid_to` bound the time in which both were valid. `since` excludes versions that had
    ended by then. If one of the two histories was pruned, `since` is required and must not be earlier than
    its watermark.
    """
    _require_foreign_key(child, fk)
    for history in (child, parent):
        if since is not None:
            history.model.require_unpruned(instant_of(since))
        elif history.watermark:
            raise UsageError(
                "since-needed",
                f"{history.model.name} was pruned, so its past is incomplete.",
                f"Give since, {iso(history.watermark)} or later.",
            )
    starts, ends = ((child.start_of("c"), parent.start_of("p")), (child.end_of("c"), parent.end_of("p")))
    begin = f"CASE WHEN {starts[0]} < {starts[1]} THEN {starts[1]} ELSE {starts[0]} END"
    end = f"CASE WHEN {ends[0]} IS NULL OR {ends[1]} < {ends[0]} THEN {ends[1]} ELSE {ends[0]} END"
    overlaps = [f"({ends[0]} IS NULL OR {starts[1]} < {ends[0]})"]
    overlaps += [f"({ends[1]} IS NULL OR {starts[0]} < {ends[1]})"]
    if since is not None:
        overlaps += [f"({each} IS NULL OR {each} > {child.instant(since)})" for each in ends]
    times = [(VALID_FROM, begin), (VALID_TO, end)]
    return _join(child, parent, fk, f"JOIN {parent.table}", " AND ".join(overlaps), times)


def _join(
    child: StoredHistory,
    parent: StoredHistory,
    fk: str,
    join: str,
    condition: str,
    more: Sequence[ResultColumn] = (),
) -> Query:
    """The child's versions that meet a condition, joined with the parent's versions on the foreign key."""
    columns = [*columns_of(child, "c", child.names), *columns_of(parent, "p", parent.names, "parent_"), *more]
    same = f"{parent.of('p', parent.key)} = {child.of('c', fk)}"
    rows = f"FROM {child.table} AS c\n{join} AS p ON {same}\nWHERE {condition}"
    return select(child.dialect, columns, rows)


def _require_foreign_key(child: StoredHistory, fk: str) -> None:
    known = [name for name in child.names if name in child.model.references]
    if fk not in known:
        raise UsageError(
            "unknown-reference",
            f"{child.model.name} has no foreign key {fk!r}.",
            f"It has {', '.join(known) or 'none'}.",
        )


def changes(history: StoredHistory, after: Time, until: Time) -> Query:
    """The events after `after`, up to and including `until`, with one row for each event.

    `change` is inserted, changed, deleted or reappeared, and `changed_at` is its instant. Each attribute has
    the columns `old_<name>` and `new_<name>`.
    """
    literal, text, names = history.instant, history.text, [each.name for each in history.attributes]
    low, high = history.model.require_unpruned(instant_of(after)), instant_of(until)
    start, end, deleted = history.start_of("h"), history.end_of("h"), text(history.model.labels.deleted)
    began, ended = (f"{time} > {literal(low)} AND {time} <= {literal(high)}" for time in (start, end))
    key, identifying = history.key, columns_of(history, "h", [history.key, *history.model.shape.key])
    kind = (
        f"CASE WHEN {history.of('o', key)} IS NOT NULL THEN {text(State.CHANGED)} "
        f"WHEN f.{_FIRST_START} < {start} THEN {text(State.REAPPEARED)} ELSE {text('inserted')} END"
    )
    same = f"{history.of('o', key)} = {history.of('h', key)} AND {history.end_of('o')} = {start}"
    same += f" AND {history.of('o', STATE)} = {text(history.model.labels.changed)}"
    before, now = columns_of(history, "o", names, "old_"), columns_of(history, "h", names, "new_")
    beginnings = select(
        history.dialect,
        [("change", kind), ("changed_at", start), *identifying, *before, *now],
        f"FROM {history.table} AS h\nLEFT JOIN {history.table} AS o ON {same}\n"
        f"{_join_first_starts(history)}\nWHERE {began}",
    )
    change = [("change", text(State.DELETED)), ("changed_at", end)]
    before = columns_of(history, "h", names, "old_")
    nothing = [(f"new_{each.name}", history.null_of(each)) for each in history.attributes]
    rows = f"FROM {history.table} AS h\nWHERE {history.of('h', STATE)} = {deleted} AND {ended}"
    endings = select(history.dialect, [*change, *identifying, *before, *nothing], rows)
    return Query(f"{beginnings.sql}\nUNION ALL\n{endings.sql}", beginnings.columns)


def diff(history: StoredHistory, first: Time, second: Time, columns: Sequence[str] | None = None) -> Query:
    """The differences between two times, in all attributes or in `columns`.

    `change` is added, changed or removed. A changed record has a row for each attribute that differs:
    `column_name`, and `old_value` and `new_value` as canonical text. Other rows have NULL in all three.
    """
    dialect, text = history.dialect, history.text
    compared = _compared_attributes(history, columns)
    nothing = dialect.cast_expression("NULL", dialect.map_logical_type(Datatype.STRING))
    names = [f"SELECT {nothing} AS column_name", *(f"SELECT {text(each.name)}" for each in compared)]
    differs = [f"c.column_name = {text(each.name)} AND {_differs(history, each)}" for each in compared]

    def value(side: str) -> str:
        cases = " ".join(f"WHEN {text(each.name)} THEN {_text(history, each, side)}" for each in compared)
        return f"CASE c.column_name {cases} END" if compared else nothing

    old, new = (history.of(side, history.key) for side in ("o", "n"))
    change = (
        f"CASE WHEN {old} IS NULL THEN {text('added')} "
        f"WHEN {new} IS NULL THEN {text('removed')} ELSE {text('changed')} END"
    )
    key = [
        (name, f"COALESCE({history.of('n', name)}, {history.of('o', name)})")
        for name in (history.key, *history.model.shape.key)
    ]
    one, other = (
        f"(SELECT * FROM {history.table} AS h WHERE {is_valid_at(history, 'h', time)})"
        for time in (first, second)
    )
    return select(
        dialect,
        [
            ("change", change),
            *key,
            ("column_name", "c.column_name"),
            ("old_value", value("o")),
            ("new_value", value("n")),
        ],
        f"FROM {one} AS o\nFULL JOIN {other} AS n ON {new} = {old}\n"
        f"JOIN (\n{' UNION ALL '.join(names)}\n) AS c\n"
        f"ON (c.column_name IS NULL AND ({old} IS NULL OR {new} IS NULL))\n"
        f"  OR ({old} = {new} AND (1 = 0{''.join(f' OR ({each})' for each in differs)}))",
    )


def _compared_attributes(history: StoredHistory, columns: Sequence[str] | None) -> list[SqlColumn]:
    known = {column.name: column for column in history.attributes}
    if unknown := [name for name in columns or [] if name not in known]:
        raise UsageError(
            "unknown-column",
            f"{history.model.name} has no attribute {unknown[0]!r}.",
            f"It has {', '.join(known)}.",
        )
    return [known[name] for name in (known if columns is None else columns)]


def _differs(history: StoredHistory, column: SqlColumn) -> str:
    """SQL for whether the values of an attribute differ. JSON is compared as text."""
    as_text = column.datatype is Datatype.JSON
    sides = (_text(history, column, side) if as_text else history.of(side, column.name) for side in "on")
    return history.dialect.null_safe_ne(*sides)


def _text(history: StoredHistory, column: SqlColumn, side: str) -> str:
    """The canonical text of an attribute on a side."""
    sql, dialect = history.of(side, column.name), history.dialect
    if column.datatype is Datatype.FLOAT:
        return dialect.cast_expression(sql, dialect.map_logical_type(Datatype.STRING))
    return dialect.canonical_text(sql, column.datatype, column.decimal_precision, column.decimal_scale)
