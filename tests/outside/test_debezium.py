"""A real Debezium follows a real PostgreSQL, and the events leave what the database has (V61 to V63)."""

from decimal import Decimal

import psycopg
import pytest
from debezium_engine import empty_database, last_rows, messages_of, record
from depth import DEPTH
from psycopg.rows import dict_row

from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages

KEYS = {"customer": ["id", "region"], "plain": ["id"], "whole": ["id"]}
DECIMALS = {"price", "huge", "free", "cash", "n", "amount"}
# How a column is asked for, where a table of ours has another type for it.
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
# Debezium has no placeholder for lists of these; and types that psycopg knows otherwise.
APART = {"ratios", "flags", "flag", "place"}
TIMES = {"born", "wakes", "seen", "seen_ms", "seen_at", "days", "times"}
WITHOUT_SCHEMAS = {
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "decimal.handling.mode": "string",
}
# Connect's times have milliseconds alone.
WAYS = {
    "as it is": ({}, set()),
    "connect's times": ({"time.precision.mode": "connect"}, {"days", "wakes", "seen"}),
    "texts of times": ({"time.precision.mode": "isostring"}, {"days"}),
    "nanoseconds": ({"time.precision.mode": "nanoseconds"}, set()),
    "without schemas": (WITHOUT_SCHEMAS, TIMES | {"photo", "photos", "prices"}),
}


@pytest.mark.parametrize("way", WAYS if DEPTH == "laws" else [])
def test_events_leave_what_the_database_has(postgresql_url, tmp_path, way):
    """A snapshot and all kinds of changes, in each way in which Debezium writes values."""
    properties, apart = WAYS[way]
    with empty_database(postgresql_url) as url:
        messages = record(url, tmp_path, **properties)
        for table, key in KEYS.items():
            events = unwrap_debezium(debezium_messages(*messages_of(messages, table)), key)
            left = last_rows(events, key)
            assert comparable(left, APART | apart) == comparable(stored(url, table, key), APART | apart)


def stored(url, table, key):
    with psycopg.connect(url, row_factory=dict_row) as connection:
        names = [each.name for each in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]
        asked = ", ".join(f"{ASKED.get(name, name)} AS {name}" for name in names)
        rows = connection.execute(f"SELECT {asked} FROM {table}").fetchall()
    return {tuple(row[each] for each in key): row for row in rows}


def comparable(rows, apart):
    """The rows without what is apart; a decimal that is a text is the same number."""

    def cell(name, value):
        return Decimal(value) if name in DECIMALS and value is not None else value

    return {
        key: {name: cell(name, value) for name, value in row.items() if name not in apart}
        for key, row in rows.items()
    }
