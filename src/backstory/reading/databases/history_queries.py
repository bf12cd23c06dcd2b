"""Questions about a model's history, each a query in any dialect (sections 7.1, 7.2 and 7.4).

Times are ISO text or aware datetimes. A time before the prune watermark is refused, because versions that
were valid then may have been removed. By effective time, however, pruned versions still count, because a
later load did not make them untrue.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from backstory.errors import UsageError
from backstory.model.history import Dating, Labels
from backstory.model.instant import instant_of, iso
from backstory.model.layout import STATE, VALID_FROM, VALID_TO
from backstory.reading.databases.stored_history import (
    Key,
    Query,
    ResultColumn,
    StoredHistory,
    Time,
    columns_of,
    distinct,
    select,
)
from backstory.reading.lifetimes import TRUE_AT
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.strategies.scd2.transitions import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KnownRun(Protocol):
    """A load: its instant, and its receipt if it succeeded."""

    @property
    def load_timestamp(self) -> datetime:
        """The instant of everything that the load wrote."""

    @property
    def receipt(self) -> Mapping[str, Any] | None:
        """The receipt of the load; None if it did not succeed."""


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

    `gap_before` is NULL for the first version and for a version that follows at once. It is an interval; on
    SQL Server, which has no intervals, it is a number of microseconds.
    """
    start = history.start_of("h")
    over = f"OVER (PARTITION BY {history.of('h', history.key)} ORDER BY {start})"
    before = f"LAG({history.end_of('h')}) {over}"
    counted = history.dialect.SQLGLOT_NAME == "tsql"
    length = f"DATEDIFF_BIG(MICROSECOND, {before}, {start})" if counted else f"{start} - {before}"
    gap = ResultColumn("gap_before", f"CASE WHEN {before} < {start} THEN {length} END")
    rows = f"FROM {history.all_versions} AS h\nWHERE {history.is_record('h', key)}\nORDER BY {start}"
    return select(history.dialect, [*columns_of(history, "h", history.names), gap], rows)


def frame(spark: "SparkSession", query: Query) -> "DataFrame":
    """Run a query in the dialect of Spark."""
    return spark.sql(query.sql)


def is_valid_at(history: StoredHistory, alias: str, time: Time) -> str:
    """Whether a version was valid at a time."""
    literal = history.dialect.timestamp_literal(history.model.require_unpruned(instant_of(time)))
    return TRUE_AT.format(started=history.start_of(alias), ended=history.end_of(alias), at=literal)


_MIDNIGHT = " 00:00:00.000000+00:00"


def effective(history: StoredHistory, dating: Dating, known_at: Time | None = None) -> Query:
    """The versions with `effective_from` and `effective_to`, as known at a time, by default now.

    If several versions of a record are effective from the same time, the newest counts. The intervals of a
    record do not overlap, and only the last one can be open.
    """
    # Own names: the time, its number among equal times, and the end of a deleted record.
    own = distinct([*history.names, "effective_from", "effective_to", "nth", "gone"])[-4:]
    begin, end, nth, gone = map(history.dialect.render_identifier, own)
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
    times = [ResultColumn("effective_from", f"e.{begin}"), ResultColumn("effective_to", f"e.{end}")]
    rows = f"FROM (\n{middle}\n) AS e\nWHERE e.{end} IS NULL OR e.{begin} < e.{end}"
    return select(history.dialect, [*columns_of(history, "e", history.names), *times], rows)


def _on_axis(history: StoredHistory, dating: Dating, sql: str, datatype: Datatype) -> str:
    """A date or an instant in the granularity of `dating`; days are days in UTC."""
    target = Datatype.DATE if dating.granularity == "date" else Datatype.TIMESTAMP
    if datatype is target:
        return sql
    dialect = history.dialect
    text = dialect.canonical_text(sql, datatype)
    midnight = dialect.concat_expression([text, dialect.string_literal(_MIDNIGHT)])
    day = f"substring({text}, 1, 10)" if target is Datatype.DATE else midnight
    return dialect.cast_expression(day, dialect.map_logical_type(target))


_FIRST_START = "first_started_at"


def _join_first_starts(history: StoredHistory) -> str:
    """The join of the versions `h` with the first start of their records, including pruned versions."""
    key = history.dialect.render_identifier(history.key)
    first = (
        f"SELECT e.{key}, MIN({history.start_of('e')}) AS {_FIRST_START} FROM {history.all_versions} AS e"
        f" GROUP BY e.{key}"
    )
    return f"JOIN (\n{first}\n) AS f ON f.{key} = h.{key}"


def labeled(history: StoredHistory, labels: Labels) -> Query:
    """The versions with other labels for their states; stored values do not change.

    An open version of a record that existed before gets the label `reappeared`.
    """
    stored, text, state = history.model.labels, history.text, history.of("h", STATE)
    pairs = ((stored.new, labels.new), (stored.changed, labels.changed), (stored.deleted, labels.deleted))
    again = f"{state} = {text(stored.new)} AND f.{_FIRST_START} < {history.start_of('h')}"
    cases = [f"WHEN {again} THEN {text(labels.reappeared)}"]
    cases += [f"WHEN {state} = {text(old)} THEN {text(new)}" for old, new in pairs]
    label = f"CASE {' '.join(cases)} ELSE {state} END"
    shown = [ResultColumn(name, label if name == STATE else history.of("h", name)) for name in history.names]
    return select(history.dialect, shown, f"FROM {history.table} AS h\n{_join_first_starts(history)}")


def join_as_of(
    child: StoredHistory, parent: StoredHistory, fk: str, time: Time, how: Literal["left", "inner"] = "left"
) -> Query:
    """The child's versions valid at a time, with the parent's version in the columns `parent_<name>`."""
    _require_foreign_key(child, fk)
    side = f"(SELECT * FROM {parent.table} AS p WHERE {is_valid_at(parent, 'p', time)})"
    return _join(child, parent, fk, f"{how.upper()} JOIN {side}", is_valid_at(child, "c", time))


def join_valid(child: StoredHistory, parent: StoredHistory, fk: str, since: Time | None = None) -> Query:
    """Each pair of a child's and its parent's version, and when both were valid: `valid_from`, `valid_to`.

    `since` leaves out versions that had ended by then. If one of the two histories was pruned, `since` is
    required and must not be earlier than its watermark.
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
    times = [ResultColumn(VALID_FROM, begin), ResultColumn(VALID_TO, end)]
    return _join(child, parent, fk, f"JOIN {parent.table}", " AND ".join(overlaps), times)


def _join(
    child: StoredHistory,
    parent: StoredHistory,
    fk: str,
    join: str,
    condition: str,
    more: Sequence[ResultColumn] = (),
) -> Query:
    """The child's versions that meet a condition, joined with versions of the parent, by the foreign key."""
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
    """The events after `after` and up to `until`, a row for each.

    `change` is inserted, changed, deleted or reappeared, and `changed_at` its instant. Each attribute has the
    columns `old_<name>` and `new_<name>`.
    """
    literal, text, names = history.instant, history.text, [each.name for each in history.attributes]
    low, high = history.model.require_unpruned(instant_of(after)), instant_of(until)
    start, end, deleted = history.start_of("h"), history.end_of("h"), text(history.model.labels.deleted)
    began, ended = (f"{time} > {literal(low)} AND {time} <= {literal(high)}" for time in (start, end))
    key, identifying = history.key, columns_of(history, "h", history.identifying)
    kind = (
        f"CASE WHEN {history.of('o', key)} IS NOT NULL THEN {text(State.CHANGED)} "
        f"WHEN f.{_FIRST_START} < {start} THEN {text(State.REAPPEARED)} ELSE {text('inserted')} END"
    )
    same = f"{history.of('o', key)} = {history.of('h', key)} AND {history.end_of('o')} = {start}"
    same += f" AND {history.of('o', STATE)} = {text(history.model.labels.changed)}"
    before, now = columns_of(history, "o", names, "old_"), columns_of(history, "h", names, "new_")
    beginnings = select(
        history.dialect,
        [ResultColumn("change", kind), ResultColumn("changed_at", start), *identifying, *before, *now],
        f"FROM {history.table} AS h\nLEFT JOIN {history.table} AS o ON {same}\n"
        f"{_join_first_starts(history)}\nWHERE {began}",
    )
    change = [ResultColumn("change", text(State.DELETED)), ResultColumn("changed_at", end)]
    before = columns_of(history, "h", names, "old_")
    nothing = [ResultColumn(f"new_{each.name}", history.null_of(each)) for each in history.attributes]
    rows = f"FROM {history.table} AS h\nWHERE {history.of('h', STATE)} = {deleted} AND {ended}"
    endings = select(history.dialect, [*change, *identifying, *before, *nothing], rows)
    return Query(f"{beginnings.sql}\nUNION ALL\n{endings.sql}", beginnings.columns)


def diff(history: StoredHistory, first: Time, second: Time, columns: Sequence[str] | None = None) -> Query:
    """The differences between two times, in all attributes or in `columns`.

    `change` is added, changed or removed. A changed record has a row for each attribute that differs:
    `column_name`, and `old_value` and `new_value` as canonical text. These are NULL in the other rows.
    """
    dialect, text = history.dialect, history.text
    compared = _compared_attributes(history, columns)
    nothing = dialect.cast_expression("NULL", dialect.map_logical_type(Datatype.STRING))
    names = [f"SELECT {nothing} AS column_name", *(f"SELECT {text(each.name)}" for each in compared)]
    differs = [f"c.column_name = {text(each.name)} AND {_differs(history, each)}" for each in compared]

    def value(side: str) -> str:
        cases = " ".join(f"WHEN {text(each.name)} THEN {_text(history, each, side)}" for each in compared)
        return f"CASE c.column_name {cases} END" if compared else nothing

    any_differs = "".join(f" OR ({each})" for each in differs)
    is_changed = f"p.backstory_change = {text('changed')}"
    return select(
        dialect,
        [
            ResultColumn("change", "p.backstory_change"),
            *columns_of(history, "p", history.identifying),
            ResultColumn("column_name", "c.column_name"),
            ResultColumn("old_value", value("o")),
            ResultColumn("new_value", value("n")),
        ],
        f"FROM (\n{_versions_of_two(history, first, second, compared)}\n) AS p\n"
        f"JOIN (\n{' UNION ALL '.join(names)}\n) AS c\n"
        f"ON (c.column_name IS NULL AND NOT {is_changed}) OR ({is_changed} AND (1 = 0{any_differs}))",
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


def _side(history: StoredHistory, column: SqlColumn, side: str) -> str:
    """The name of an attribute's column on a side, `o` for the first time and `n` for the second."""
    return f"backstory_{side}{[each.name for each in history.attributes].index(column.name)}"


def _versions_of_two(history: StoredHistory, first: Time, second: Time, columns: Sequence[SqlColumn]) -> str:
    """Each record that is valid at one of two times: what became of it, and its attributes at both."""
    sides, values = [], []
    for side, time in (("o", first), ("n", second)):
        named = [f"{history.of('h', each.name)} AS {_side(history, each, side)}" for each in columns]
        listed = ", ".join([*(history.of("h", name) for name in history.identifying), *named])
        sides.append(f"(SELECT {listed} FROM {history.table} AS h WHERE {is_valid_at(history, 'h', time)})")
        values += [f"{side}.{_side(history, each, side)}" for each in columns]
    old, new = (history.of(side, history.key) for side in ("o", "n"))
    change = (
        f"CASE WHEN {old} IS NULL THEN {history.text('added')} "
        f"WHEN {new} IS NULL THEN {history.text('removed')} ELSE {history.text('changed')} END"
    )
    keys = [
        f"COALESCE({history.of('n', name)}, {history.of('o', name)}) AS "
        f"{history.dialect.render_identifier(name)}"
        for name in history.identifying
    ]
    listed = ", ".join([f"{change} AS backstory_change", *keys, *values])
    return f"SELECT {listed}\nFROM {sides[0]} AS o\nFULL JOIN {sides[1]} AS n ON {new} = {old}"


def _differs(history: StoredHistory, column: SqlColumn) -> str:
    """Whether the values of an attribute differ; databases compare JSON as text."""
    as_text = column.datatype is Datatype.JSON
    sides = [
        _text(history, column, side) if as_text else f"p.{_side(history, column, side)}"
        for side in ("o", "n")
    ]
    return history.dialect.null_safe_ne(*sides)


def _text(history: StoredHistory, column: SqlColumn, side: str) -> str:
    """The canonical text of an attribute on a side."""
    sql, dialect = f"p.{_side(history, column, side)}", history.dialect
    if column.datatype is Datatype.FLOAT:
        return dialect.cast_expression(sql, dialect.map_logical_type(Datatype.STRING))
    return dialect.canonical_text(sql, column.datatype, column.decimal_precision, column.decimal_scale)
