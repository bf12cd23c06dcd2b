"""The history by effective time: from when on its rows are true in the world (section 7.1).

The history stays load-dated. What counts is what was known at a knowledge time; versions that were
pruned still count, because a later load did not make them untrue.
"""

from backstory.model.history import Dating
from backstory.model.layout import STATE
from backstory.reading.statements.stored_history import (
    Query,
    Shown,
    StoredHistory,
    Time,
    columns_of,
    distinct,
    select,
)
from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.dialects.dialect import Dialect

_MIDNIGHT = " 00:00:00.000000+00:00"


def effective(history: StoredHistory, dating: Dating, known_at: Time | None = None) -> Query:
    """The versions with `effective_from` and `effective_to`, by what was known at a time.

    Without `known_at` it is what the history knows. Of several versions that are effective from the
    same time the youngest counts; intervals of a record do not overlap, and only the last can be open.
    """
    names = distinct([*history.names, "effective_from", "effective_to", "nth", "gone"])
    begin, end, nth, gone = (history.dialect.render_identifier(name) for name in names[-4:])
    inner = _dated(history, dating, known_at, (begin, nth, gone))
    listed = ", ".join(history.of("d", name) for name in history.names)
    following = f"LEAD(d.{begin}) OVER (PARTITION BY {history.of('d', history.key)} ORDER BY d.{begin})"
    middle = (
        f"SELECT {listed}, d.{begin}, COALESCE({following}, d.{gone}) AS {end}\n"
        f"FROM (\n{inner}\n) AS d\nWHERE d.{nth} = 1"
    )
    return select(
        history.dialect,
        [
            *columns_of(history, "e", history.names),
            Shown("effective_from", f"e.{begin}"),
            Shown("effective_to", f"e.{end}"),
        ],
        f"FROM (\n{middle}\n) AS e\nWHERE e.{end} IS NULL OR e.{begin} < e.{end}",
    )


def _dated(history: StoredHistory, dating: Dating, known_at: Time | None, names: tuple[str, str, str]) -> str:
    """The known versions with their effective time, their number among equals, and when the record went."""
    begin, nth, gone = names
    started, ended = history.started("h"), history.ended("h")
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
        f" OVER (PARTITION BY {key} ORDER BY {started} DESC) AS {gone}\n"
        f"FROM {history.everything} AS h{known}"
    )


def _effective_value(history: StoredHistory, dating: Dating) -> str:
    """The time from which a version is true: its own, else the start of the version."""
    column = history.column(dating.column)
    own = _on_axis(history.dialect, dating, history.of("h", column.name), column.datatype)
    started = _on_axis(history.dialect, dating, history.started("h"), Datatype.TIMESTAMP)
    return f"COALESCE({own}, {started})"


def _on_axis(dialect: Dialect, dating: Dating, sql: str, datatype: Datatype) -> str:
    """A date or an instant as the granularity has it; days are days of UTC, whatever the session says."""
    wanted = Datatype.DATE if dating.granularity == "date" else Datatype.TIMESTAMP
    if datatype is wanted:
        return sql
    text = dialect.canonical_text(sql, datatype)
    if wanted is Datatype.DATE:
        day = f"substring({text}, 1, 10)"
    else:
        day = dialect.concat_expression([text, dialect.string_literal(_MIDNIGHT)])
    return dialect.cast_expression(day, dialect.map_logical_type(wanted))
