"""What changed between points in time, as queries of any dialect (section 7.4)."""

from collections.abc import Sequence

from backstory.errors import UsageError
from backstory.model.instant import instant_of
from backstory.model.layout import STATE
from backstory.reading.statements.point_in_time import valid
from backstory.reading.statements.stored_history import Query, Shown, StoredHistory, Time, columns_of, select
from backstory.stores.sql.columns import Datatype, SqlColumn
from backstory.strategies.scd2.transitions import State

# What a database cannot compare as other values are.
_AS_TEXT = {Datatype.JSON}


def changes(history: StoredHistory, after: Time, until: Time) -> Query:
    """What happened later than `after` and not later than `until`, a row for each event.

    `change` is inserted, changed, deleted or reappeared, `changed_at` its instant; each attribute comes as
    `old_<name>` and `new_<name>`.
    """
    names = [each.name for each in history.attributes]
    low, high = history.model.whole_at(instant_of(after)), instant_of(until)
    within = " AND ".join(
        f"{{0}} {sign} {history.dialect.timestamp_literal(time)}" for sign, time in ((">", low), ("<=", high))
    )
    begun = _begun(history, within.format(history.started("h")))
    ended = select(
        history.dialect,
        [
            Shown("change", history.text(State.DELETED)),
            Shown("changed_at", history.ended("h")),
            *columns_of(history, "h", history.identifying),
            *columns_of(history, "h", names, "old_"),
            *(Shown(f"new_{each.name}", history.nothing(each)) for each in history.attributes),
        ],
        f"FROM {history.table} AS h\nWHERE {history.of('h', STATE)} = "
        f"{history.text(history.model.labels.deleted)} AND {within.format(history.ended('h'))}",
    )
    return Query(f"{begun.sql}\nUNION ALL\n{ended.sql}", begun.columns)


def _begun(history: StoredHistory, within: str) -> Query:
    """The events that begin a version."""
    started, key = history.started("h"), history.dialect.render_identifier(history.key)
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
            Shown("change", kind),
            Shown("changed_at", started),
            *columns_of(history, "h", history.identifying),
            *columns_of(history, "o", names, "old_"),
            *columns_of(history, "h", names, "new_"),
        ],
        f"FROM {history.table} AS h\n"
        f"LEFT JOIN {history.table} AS o ON o.{key} = h.{key} AND {history.ended('o')} = {started}"
        f" AND {history.of('o', STATE)} = {history.text(history.model.labels.changed)}\n"
        f"JOIN (SELECT e.{key}, MIN({history.started('e')}) AS {first}"
        f" FROM {history.everything} AS e GROUP BY e.{key}) AS f ON f.{key} = h.{key}\nWHERE {within}",
    )


def diff(history: StoredHistory, first: Time, second: Time, columns: Sequence[str] | None = None) -> Query:
    """How the state at one time differs from that at another, in all attributes or in these.

    `change` is added, changed or removed. A changed record has a row for each attribute that differs, in
    `column_name`, with `old_value` and `new_value` as canonical text; the other rows have NULL there.
    """
    compared = _chosen(history, columns)
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
            Shown("change", "p.backstory_change"),
            *columns_of(history, "p", history.identifying),
            Shown("column_name", "c.column_name"),
            Shown("old_value", _value(history, compared, "o")),
            Shown("new_value", _value(history, compared, "n")),
        ],
        f"FROM (\n{versions}\n) AS p\nJOIN (\n{' UNION ALL '.join(names)}\n) AS c\n"
        f"ON (c.column_name IS NULL AND NOT {is_changed}) OR ({is_changed} AND (1 = 0{differs}))",
    )


def _chosen(history: StoredHistory, columns: Sequence[str] | None) -> list[SqlColumn]:
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
        sides.append(f"(SELECT {listed} FROM {history.table} AS h WHERE {valid(history, 'h', time)})")
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
        sides = [_printed(history, column, side) for side in sides]
    return history.dialect.null_safe_ne(*sides)


def _value(history: StoredHistory, columns: Sequence[SqlColumn], alias: str) -> str:
    """The canonical text of the attribute that a row is about."""
    if not columns:
        return history.dialect.cast_expression("NULL", _text_type(history))
    cases = " ".join(
        f"WHEN {history.text(each.name)} THEN {_printed(history, each, f'p.backstory_{alias}{number}')}"
        for number, each in enumerate(columns)
    )
    return f"CASE c.column_name {cases} END"


def _printed(history: StoredHistory, column: SqlColumn, sql: str) -> str:
    if column.datatype is Datatype.FLOAT:
        return history.dialect.cast_expression(sql, _text_type(history))
    return history.dialect.canonical_text(
        sql, column.datatype, column.decimal_precision, column.decimal_scale
    )


def _text_type(history: StoredHistory) -> str:
    return history.dialect.map_logical_type(Datatype.STRING)
