"""Questions for a model's history, each a query in any dialect (sections 7.1, 7.2 and 7.4).

Times are ISO text or aware datetimes. A time before the prune watermark is refused, because versions that
were valid then may have been removed. By effective time, though, pruned versions still count: a later load
did not make them untrue.
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
from backstory.stores.sql.dialect import Dialect
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


def as_of(history: StoredHistory, time: Time) -> Query:
    """The versions that were valid at a time, at most one for each record."""
    return select(
        history.dialect,
        columns_of(history, "h", history.names),
        f"FROM {history.table} AS h\nWHERE {is_valid_at(history, 'h', time)}",
    )


def as_of_run(history: StoredHistory, run_id: str, known: KnownRun | None) -> Query:
    """The versions that were valid after a run; UsageError if the run did not succeed."""
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
        f"FROM {history.table} AS h\nWHERE {history.end_of('h')} IS NULL",
    )


def timeline(history: StoredHistory, key: Key) -> Query:
    """All versions of a record, including archived ones, sorted by their start, and the gap before each.

    `gap_before` is NULL for the first version and for a version that follows at once. It is an interval; on
    SQL Server, which has no intervals, it is a number of microseconds.
    """
    started, ended = history.start_of("h"), history.end_of("h")
    over = f"OVER (PARTITION BY {history.of('h', history.key)} ORDER BY {started})"
    before = f"LAG({ended}) {over}"
    gap = f"CASE WHEN {before} < {started} THEN {_difference(history.dialect, started, before)} END"
    return select(
        history.dialect,
        [*columns_of(history, "h", history.names), ResultColumn("gap_before", gap)],
        f"FROM {history.all_versions} AS h\nWHERE {history.is_record('h', key)}\nORDER BY {started}",
    )


def _difference(dialect: Dialect, later: str, earlier: str) -> str:
    if dialect.SQLGLOT_NAME == "tsql":
        return f"DATEDIFF_BIG(MICROSECOND, {earlier}, {later})"
    return f"{later} - {earlier}"


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
    names = distinct([*history.names, "effective_from", "effective_to", "nth", "gone"])
    begin, end, nth, deleted_at = (history.dialect.render_identifier(name) for name in names[-4:])
    inner = _versions_with_dates(history, dating, known_at, (begin, nth, deleted_at))
    listed = ", ".join(history.of("d", name) for name in history.names)
    following = f"LEAD(d.{begin}) OVER (PARTITION BY {history.of('d', history.key)} ORDER BY d.{begin})"
    middle = (
        f"SELECT {listed}, d.{begin}, COALESCE({following}, d.{deleted_at}) AS {end}\n"
        f"FROM (\n{inner}\n) AS d\nWHERE d.{nth} = 1"
    )
    return select(
        history.dialect,
        [
            *columns_of(history, "e", history.names),
            ResultColumn("effective_from", f"e.{begin}"),
            ResultColumn("effective_to", f"e.{end}"),
        ],
        f"FROM (\n{middle}\n) AS e\nWHERE e.{end} IS NULL OR e.{begin} < e.{end}",
    )


def _versions_with_dates(
    history: StoredHistory, dating: Dating, known_at: Time | None, names: tuple[str, str, str]
) -> str:
    """The known versions with effective time, number among equal times, and the end of a deleted record."""
    begin, nth, deleted_at = names
    started, ended = history.start_of("h"), history.end_of("h")
    deleted = f"{history.of('h', STATE)} = {history.text(history.model.labels.deleted)}"
    known = ""
    if known_at is not None:
        literal = history.instant(known_at)
        known, deleted = f"\nWHERE {started} <= {literal}", f"{deleted} AND {ended} <= {literal}"
    value, key = _effective_value(history, dating), history.of("h", history.key)
    end = _on_axis(history.dialect, dating, ended, Datatype.TIMESTAMP)
    listed = ", ".join(history.of("h", name) for name in history.names)
    return (
        f"SELECT {listed}, {value} AS {begin},\n"
        f"  ROW_NUMBER() OVER (PARTITION BY {key}, {value} ORDER BY {started} DESC) AS {nth},\n"
        f"  FIRST_VALUE(CASE WHEN {deleted} THEN {end} END)"
        f" OVER (PARTITION BY {key} ORDER BY {started} DESC) AS {deleted_at}\n"
        f"FROM {history.all_versions} AS h{known}"
    )


def _effective_value(history: StoredHistory, dating: Dating) -> str:
    """The time from which a version is effective: the value of its own column, or else its start."""
    column = history.column(dating.column)
    own = _on_axis(history.dialect, dating, history.of("h", column.name), column.datatype)
    started = _on_axis(history.dialect, dating, history.start_of("h"), Datatype.TIMESTAMP)
    return f"COALESCE({own}, {started})"


def _on_axis(dialect: Dialect, dating: Dating, sql: str, datatype: Datatype) -> str:
    """A date or an instant in the granularity of `dating`; days are days in UTC."""
    target = Datatype.DATE if dating.granularity == "date" else Datatype.TIMESTAMP
    if datatype is target:
        return sql
    text = dialect.canonical_text(sql, datatype)
    if target is Datatype.DATE:
        day = f"substring({text}, 1, 10)"
    else:
        day = dialect.concat_expression([text, dialect.string_literal(_MIDNIGHT)])
    return dialect.cast_expression(day, dialect.map_logical_type(target))


_FIRST_START = "first_started_at"


def labeled(history: StoredHistory, labels: Labels) -> Query:
    """The versions with other labels for their states; stored values do not change.

    An open version of a record that existed before gets the label `reappeared`.
    """
    stored, text = history.model.labels, history.text
    state, key = history.of("h", STATE), history.dialect.render_identifier(history.key)
    words = {
        stored.new: text(labels.new),
        stored.changed: text(labels.changed),
        stored.deleted: text(labels.deleted),
    }
    again = f"{state} = {text(stored.new)} AND f.{_FIRST_START} < {history.start_of('h')}"
    cases = [f"WHEN {again} THEN {text(labels.reappeared)}"]
    cases += [f"WHEN {state} = {text(old)} THEN {new}" for old, new in words.items()]
    label = f"CASE {' '.join(cases)} ELSE {state} END"
    first = (
        f"SELECT e.{key}, MIN({history.start_of('e')}) AS {_FIRST_START} FROM {history.all_versions} AS e"
        f" GROUP BY e.{key}"
    )
    return select(
        history.dialect,
        [ResultColumn(name, label if name == STATE else history.of("h", name)) for name in history.names],
        f"FROM {history.table} AS h\nJOIN (\n{first}\n) AS f ON f.{key} = h.{key}",
    )


def join_as_of(
    child: StoredHistory, parent: StoredHistory, fk: str, time: Time, how: Literal["left", "inner"] = "left"
) -> Query:
    """The child's versions valid at a time, with the parent's version in the columns `parent_<name>`."""
    _require_foreign_key(child, fk)
    side = f"(SELECT * FROM {parent.table} AS p WHERE {is_valid_at(parent, 'p', time)})"
    return select(
        child.dialect,
        [*columns_of(child, "c", child.names), *columns_of(parent, "p", parent.names, "parent_")],
        f"FROM {child.table} AS c\n{how.upper()} JOIN {side} AS p ON {parent.of('p', parent.key)} = "
        f"{child.of('c', fk)}\nWHERE {is_valid_at(child, 'c', time)}",
    )


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
    starts = [history.start_of(alias) for history, alias in ((child, "c"), (parent, "p"))]
    ends = [history.end_of(alias) for history, alias in ((child, "c"), (parent, "p"))]
    begin = f"CASE WHEN {starts[0]} < {starts[1]} THEN {starts[1]} ELSE {starts[0]} END"
    end = f"CASE WHEN {ends[0]} IS NULL OR {ends[1]} < {ends[0]} THEN {ends[1]} ELSE {ends[0]} END"
    overlaps = [
        f"({ends[0]} IS NULL OR {starts[1]} < {ends[0]})",
        f"({ends[1]} IS NULL OR {starts[0]} < {ends[1]})",
    ]
    if since is not None:
        literal = child.instant(since)
        overlaps += [f"({each} IS NULL OR {each} > {literal})" for each in ends]
    return select(
        child.dialect,
        [
            *columns_of(child, "c", child.names),
            *columns_of(parent, "p", parent.names, "parent_"),
            ResultColumn(VALID_FROM, begin),
            ResultColumn(VALID_TO, end),
        ],
        f"FROM {child.table} AS c\nJOIN {parent.table} AS p ON {parent.of('p', parent.key)} = "
        f"{child.of('c', fk)}\nWHERE {' AND '.join(overlaps)}",
    )


def _require_foreign_key(child: StoredHistory, fk: str) -> None:
    known = [name for name in child.names if name in child.model.references]
    if fk not in known:
        raise UsageError(
            "unknown-reference",
            f"{child.model.name} has no foreign key {fk!r}.",
            f"It has {', '.join(known) or 'none'}.",
        )


# Types that databases compare as text.
_AS_TEXT = {Datatype.JSON}


def changes(history: StoredHistory, after: Time, until: Time) -> Query:
    """The events after `after` and up to `until`, a row for each.

    `change` is inserted, changed, deleted or reappeared, and `changed_at` its instant. Each attribute has the
    columns `old_<name>` and `new_<name>`.
    """
    names = [each.name for each in history.attributes]
    low, high = history.model.require_unpruned(instant_of(after)), instant_of(until)
    within = " AND ".join(
        f"{{0}} {sign} {history.dialect.timestamp_literal(time)}" for sign, time in ((">", low), ("<=", high))
    )
    beginnings = _beginnings(history, within.format(history.start_of("h")))
    endings = select(
        history.dialect,
        [
            ResultColumn("change", history.text(State.DELETED)),
            ResultColumn("changed_at", history.end_of("h")),
            *columns_of(history, "h", history.identifying),
            *columns_of(history, "h", names, "old_"),
            *(ResultColumn(f"new_{each.name}", history.null_of(each)) for each in history.attributes),
        ],
        f"FROM {history.table} AS h\nWHERE {history.of('h', STATE)} = "
        f"{history.text(history.model.labels.deleted)} AND {within.format(history.end_of('h'))}",
    )
    return Query(f"{beginnings.sql}\nUNION ALL\n{endings.sql}", beginnings.columns)


def _beginnings(history: StoredHistory, within: str) -> Query:
    """The events with which a version begins."""
    started, key = history.start_of("h"), history.dialect.render_identifier(history.key)
    first = history.dialect.render_identifier("first_started_at")
    names = [each.name for each in history.attributes]
    kind = (
        f"CASE WHEN {history.of('o', history.key)} IS NOT NULL THEN {history.text(State.CHANGED)} "
        f"WHEN f.{first} < {started} THEN {history.text(State.REAPPEARED)} "
        f"ELSE {history.text('inserted')} END"
    )
    return select(
        history.dialect,
        [
            ResultColumn("change", kind),
            ResultColumn("changed_at", started),
            *columns_of(history, "h", history.identifying),
            *columns_of(history, "o", names, "old_"),
            *columns_of(history, "h", names, "new_"),
        ],
        f"FROM {history.table} AS h\n"
        f"LEFT JOIN {history.table} AS o ON o.{key} = h.{key} AND {history.end_of('o')} = {started}"
        f" AND {history.of('o', STATE)} = {history.text(history.model.labels.changed)}\n"
        f"JOIN (SELECT e.{key}, MIN({history.start_of('e')}) AS {first}"
        f" FROM {history.all_versions} AS e GROUP BY e.{key}) AS f ON f.{key} = h.{key}\nWHERE {within}",
    )


def diff(history: StoredHistory, first: Time, second: Time, columns: Sequence[str] | None = None) -> Query:
    """The differences between two times, in all attributes or in `columns`.

    `change` is added, changed or removed. A changed record has a row for each attribute that differs:
    `column_name`, and `old_value` and `new_value` as canonical text. These are NULL in the other rows.
    """
    compared = _compared_attributes(history, columns)
    versions = _versions_of_two(history, first, second, compared)
    names = [
        f"SELECT {history.dialect.cast_expression('NULL', _text_type(history))} AS column_name",
        *(f"SELECT {history.text(column.name)}" for column in compared),
    ]
    differs = "".join(
        f" OR (c.column_name = {history.text(each.name)} AND {_differs(history, each, number)})"
        for number, each in enumerate(compared)
    )
    is_changed = f"p.backstory_change = {history.text('changed')}"
    return select(
        history.dialect,
        [
            ResultColumn("change", "p.backstory_change"),
            *columns_of(history, "p", history.identifying),
            ResultColumn("column_name", "c.column_name"),
            ResultColumn("old_value", _value(history, compared, "o")),
            ResultColumn("new_value", _value(history, compared, "n")),
        ],
        f"FROM (\n{versions}\n) AS p\nJOIN (\n{' UNION ALL '.join(names)}\n) AS c\n"
        f"ON (c.column_name IS NULL AND NOT {is_changed}) OR ({is_changed} AND (1 = 0{differs}))",
    )


def _compared_attributes(history: StoredHistory, columns: Sequence[str] | None) -> list[SqlColumn]:
    known = {column.name: column for column in history.attributes}
    if unknown := [name for name in columns or [] if name not in known]:
        raise UsageError(
            "unknown-column",
            f"{history.model.name} has no attribute {unknown[0]!r}.",
            f"It has {', '.join(known)}.",
        )
    return list(known.values()) if columns is None else [known[name] for name in columns]


def _versions_of_two(history: StoredHistory, first: Time, second: Time, columns: Sequence[SqlColumn]) -> str:
    """Each record that is valid at one of two times: what became of it, and its attributes at both."""
    sides = []
    for alias, time in (("o", first), ("n", second)):
        values = [
            f"{history.of('h', each.name)} AS backstory_{alias}{number}"
            for number, each in enumerate(columns)
        ]
        listed = ", ".join([*(history.of("h", name) for name in history.identifying), *values])
        sides.append(f"(SELECT {listed} FROM {history.table} AS h WHERE {is_valid_at(history, 'h', time)})")
    old, new = (history.of(alias, history.key) for alias in ("o", "n"))
    keys = [
        f"COALESCE({history.of('n', name)}, {history.of('o', name)}) AS "
        f"{history.dialect.render_identifier(name)}"
        for name in history.identifying
    ]
    values = [f"{alias}.backstory_{alias}{number}" for alias in ("o", "n") for number in range(len(columns))]
    change = (
        f"CASE WHEN {old} IS NULL THEN {history.text('added')} "
        f"WHEN {new} IS NULL THEN {history.text('removed')} ELSE {history.text('changed')} END"
    )
    return (
        f"SELECT {', '.join([f'{change} AS backstory_change', *keys, *values])}\n"
        f"FROM {sides[0]} AS o\nFULL JOIN {sides[1]} AS n ON {new} = {old}"
    )


def _differs(history: StoredHistory, column: SqlColumn, number: int) -> str:
    sides = [f"p.backstory_{alias}{number}" for alias in ("o", "n")]
    if column.datatype in _AS_TEXT:
        sides = [_canonical_value(history, column, side) for side in sides]
    return history.dialect.null_safe_ne(*sides)


def _value(history: StoredHistory, columns: Sequence[SqlColumn], alias: str) -> str:
    """The canonical text of the attribute named by `column_name`."""
    if not columns:
        return history.dialect.cast_expression("NULL", _text_type(history))
    values = (
        _canonical_value(history, each, f"p.backstory_{alias}{number}") for number, each in enumerate(columns)
    )
    cases = (
        f"WHEN {history.text(each.name)} THEN {value}" for each, value in zip(columns, values, strict=True)
    )
    return f"CASE c.column_name {' '.join(cases)} END"


def _canonical_value(history: StoredHistory, column: SqlColumn, sql: str) -> str:
    if column.datatype is Datatype.FLOAT:
        return history.dialect.cast_expression(sql, _text_type(history))
    return history.dialect.canonical_text(
        sql, column.datatype, column.decimal_precision, column.decimal_scale
    )


def _text_type(history: StoredHistory) -> str:
    return history.dialect.map_logical_type(Datatype.STRING)
