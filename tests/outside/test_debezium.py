"""A real Debezium follows a real PostgreSQL, and the events produce the database's rows (V61 to V63)."""

from contextlib import ExitStack
from decimal import Decimal

import psycopg
import pytest
from debezium_engine import (
    HISTORY_OF_POSTGRESQL,
    STREAMING,
    empty_database,
    following,
    last_rows,
    messages_of,
    record,
)
from psycopg.rows import dict_row

from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages

KEYS = {"customer": ["id", "region"], "plain": ["id"], "whole": ["id"]}
DECIMALS = {"price", "huge", "free", "cash", "n", "amount"}
# The query of a column whose type is another one in our tables.
ASKED = {
    "mood": "mood::text",
    "cash": "cash::numeric",
    "wakes": "wakes::text",
    "wakes_there": "replace((wakes_there AT TIME ZONE 'UTC')::text, '+00', 'Z')",
    "term": "(extract(epoch FROM term) * 1000000)::bigint",
    "ids": "ids::text[]",
    "ref": "ref::text",
    "doc": "doc::text",
    "docb": "docb::text",
    "page": "page::text",
    "address": "host(address)",
    "span": "span::text",
}
# Debezium has no placeholder for lists of these types, and psycopg returns some types differently.
APART = {"ratios", "flags", "flag", "place"}
TIMES = {"born", "wakes", "seen", "seen_ms", "seen_at", "days", "times"}
WITHOUT_SCHEMAS = {
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "decimal.handling.mode": "string",
}
# Connect's times have only milliseconds.
WAYS = {
    "as it is": ({}, set()),
    "connect's times": ({"time.precision.mode": "connect"}, {"days", "wakes", "seen"}),
    "texts of times": ({"time.precision.mode": "isostring"}, {"days"}),
    "nanoseconds": ({"time.precision.mode": "nanoseconds"}, set()),
    "without schemas": (WITHOUT_SCHEMAS, TIMES | {"photo", "photos", "prices"}),
}


@pytest.mark.laws("a Debezium starts for each way")
@pytest.mark.parametrize("way", WAYS)
def test_events_produce_the_rows_of_the_database(postgresql_url, tmp_path, way):
    """This covers a snapshot and all kinds of changes, in each format of Debezium."""
    properties, apart = WAYS[way]
    with empty_database(postgresql_url) as url:
        messages = record(url, tmp_path, **properties)
        for table, key in KEYS.items():
            events = unwrap_debezium(debezium_messages(*messages_of(messages, table)), key)
            left = last_rows(events, key)
            assert comparable(left, APART | apart) == comparable(stored(url, table, key), APART | apart)


# The creation of a replication slot waits for open transactions, in two steps.
WAITS_FOR = "SELECT 1 FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid = '{}'"


@pytest.mark.laws("a Debezium starts for each way")
@pytest.mark.parametrize("way", ["as it is", "without schemas"])
def test_overlapping_transactions_keep_the_order_of_a_trigger(postgresql_url, tmp_path, way):
    """This includes transactions that are open during the snapshot, with the trigger's order and values."""
    with empty_database(postgresql_url) as url, ExitStack() as stack:
        first, second, late, own = (stack.enter_context(psycopg.connect(url)) for _ in range(4))
        own.autocommit = True
        own.execute(HISTORY_OF_POSTGRESQL)
        number = first.execute("SELECT pg_current_xact_id()").fetchone()[0]
        tables = {"table.include.list": "public.item,public.done"}
        recorder = stack.enter_context(following(url, tmp_path, **tables, **WAYS[way][0]))
        recorder.wait_for(own, WAITS_FOR.format(number))
        number = second.execute("SELECT pg_current_xact_id()").fetchone()[0]
        first.commit()
        recorder.wait_for(own, WAITS_FOR.format(number))
        late.execute("UPDATE item SET v = 'uno' WHERE id = 1")
        second.commit()
        recorder.wait_for(own, STREAMING)
        own.execute("UPDATE item SET v = 'due' WHERE id = 2")
        late.execute("UPDATE item SET v = 'eins' WHERE id = 1")
        first.execute("UPDATE item SET v = 'tre' WHERE id = 3")
        second.execute("DELETE FROM item WHERE id = 4")
        second.execute("INSERT INTO item VALUES (4, 'vier')")
        first.execute("UPDATE item SET v = 'drei' WHERE id = 3")
        own.execute("UPDATE item SET v = 'zwei' WHERE id = 2")
        for each in (second, late, first):
            each.commit()
        own.execute("UPDATE item SET v = 'un' WHERE id = 1")
        own.execute("INSERT INTO done VALUES (1)")
        recorder.wait_for_table("done")
        messages = messages_of(recorder.messages, "item")
        true = own.execute("SELECT id, v FROM history ORDER BY id, number").fetchall()
    events = unwrap_debezium(debezium_messages(*messages), ["id"])
    columns = events.sequence.to_pylist(), events.kinds.to_pylist(), events.rows.to_pylist()
    changes = sorted(
        (row["id"], *place.values(), kind, row["v"]) for place, kind, row in zip(*columns, strict=True)
    )
    assert [(id_, None if kind == "delete" else v) for id_, *_, kind, v in changes] == true


def stored(url, table, key):
    with psycopg.connect(url, row_factory=dict_row) as connection:
        names = [each.name for each in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]
        columns = ", ".join(f"{ASKED.get(name, name)} AS {name}" for name in names)
        rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
    return {tuple(row[each] for each in key): row for row in rows}


def comparable(rows, apart):
    """The rows without certain columns. A decimal as text equals the number."""

    def cell(name, value):
        return Decimal(value) if name in DECIMALS and value is not None else value

    return {
        key: {name: cell(name, value) for name, value in row.items() if name not in apart}
        for key, row in rows.items()
    }
