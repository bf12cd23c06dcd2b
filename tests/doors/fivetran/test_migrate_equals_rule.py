"""Law: Migrations through the server and the real store have the same result as the rule in plain Python."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from depth import deep
from destination import PLAIN, Place, refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from specification import shape_changes as rule
from tables_as_text import DAY, cell, in_order

from backstory.model.layout import ACTIVE, DELETED, END, HISTORY_COLUMNS, START, SYNCED

FEW = settings(
    max_examples=deep(24, 3),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NOW = datetime.max.replace(tzinfo=DAY.tzinfo)
LIVE = ("id", "v", "n", SYNCED, DELETED)
HISTORY = ("id", "v", "n", SYNCED, *HISTORY_COLUMNS)
TYPES = {"id": "id:LONG*", "n": "n:LONG", START: "start*", END: "end", ACTIVE: "active"}

times = st.integers(1, 6).map(lambda second: DAY + timedelta(seconds=second))
words = st.sampled_from([None, "a", "b"])
numbers = st.sampled_from([None, 1, 2])
synced = st.fixed_dictionaries({"v": words, "n": numbers, SYNCED: times})


@st.composite
def live_tables(draw: st.DrawFn) -> rule.Content:
    """Rows with the flag true, false or NULL."""
    rows = draw(st.dictionaries(st.integers(1, 4), synced, max_size=4))
    flags = st.sampled_from([None, True, False])
    return rule.Content(
        LIVE, ("id",), tuple(row | {"id": key, DELETED: draw(flags)} for key, row in rows.items())
    )


@st.composite
def histories(draw: st.DrawFn) -> rule.Content:
    """Keys with consecutive versions, whose last one is open or closed."""
    rows = []
    for key in draw(st.sets(st.integers(1, 4), max_size=3)):
        starts = sorted(draw(st.sets(times, min_size=1, max_size=3)))
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            is_open = following is None and draw(st.booleans())
            end = (
                cell("TMAX")
                if is_open
                else (following or start + timedelta(seconds=9)) - timedelta(milliseconds=1)
            )
            rows.append(draw(synced) | {"id": key, START: start, END: end, ACTIVE: is_open})
    return rule.Content(HISTORY, ("id",), tuple(rows))


@st.composite
def migrations(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """The name of a migration and its request."""
    column = draw(st.sampled_from(["v", "w", "n"]))
    at = draw(times).isoformat()
    typed = {"column": column, "column_type": "LONG" if column == "n" else "STRING"}
    text = draw(st.sampled_from(["NULL", "1", "2"]))
    return draw(
        st.sampled_from(
            [
                ("add_column_with_default_value", typed | {"default_value": text}),
                ("add_column_in_history_mode", typed | {"default_value": text, "operation_timestamp": at}),
                ("drop_column_in_history_mode", {"column": column, "operation_timestamp": at}),
                ("copy_column", {"from_column": "v", "to_column": "w"}),
                ("table_sync_mode_migration", {"type": 1}),
                ("table_sync_mode_migration", {"type": 2}),
                ("table_sync_mode_migration", {"type": 2, "soft_deleted_column": "gone"}),
            ]
        )
    )


def by_rule(table: rule.Content, entity: str, arguments: dict[str, object]) -> rule.Content | None:
    """The table after the migration by the rule, or None if it is refused."""
    column, value = arguments.get("column"), arguments.get("default_value")
    default = None if value == "NULL" else int(value) if column == "n" and value else value
    flag = arguments.get("soft_deleted_column", DELETED)
    at = (
        datetime.fromisoformat(arguments["operation_timestamp"])
        if "operation_timestamp" in arguments
        else None
    )
    if at and ACTIVE not in table.columns:
        return None
    acts = {
        "add_column_with_default_value": lambda: rule.set_value(table, column, default),
        "add_column_in_history_mode": lambda: rule.add_in_history(table, column, default, at),
        "drop_column_in_history_mode": lambda: rule.drop_in_history(table, column, at),
        "copy_column": lambda: rule.copy_column(table, "v", "w"),
        1: lambda: rule.to_history(table, flag, NOW),
        2: lambda: rule.to_soft_delete(table, flag),
    }
    try:
        return acts[arguments.get("type", entity)]()
    except rule.TooEarly:
        return None


def columns_of(table: rule.Content) -> str:
    return " ".join(TYPES.get(name, name.removeprefix("_fivetran_")) for name in table.columns)


@FEW
@given(st.one_of(live_tables(), histories()), st.lists(migrations(), min_size=1, max_size=4))
@pytest.mark.tables_on("memory", "iceberg")
def test_migrations(sender, store, schema, table, steps):
    """93 to 107: Any series of migrations has the rule's result. A refused migration changes nothing."""
    place = Place.made(replace(sender, encoding=PLAIN), store, schema, columns_of(table), list(table.rows))
    for entity, arguments in steps:
        expected = by_rule(table, entity, arguments)
        reply = place.migrate(entity, **arguments)
        if expected is None:
            assert refusal(reply)
            continue
        assert reply.success, reply
        table = expected
        assert in_order(table.rows) == place.rows()
        assert set(place.described()) == set(table.columns)
    place.drop()
