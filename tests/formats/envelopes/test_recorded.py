"""Messages written by Debezium 3.3 (tests/support/debezium), from a PostgreSQL and a MariaDB."""

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby

import pyarrow as pa
import pytest
from debezium_engine import MARIADB, RECORDED, last_rows, messages_of

from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages

LONG = {
    "tags": ["tag"] * 900,
    "codes": [7] * 900,
    "long_codes": [7] * 900,
    "days": [date(2024, 2, 29)] * 900,
    "ids": ["00000000-0000-0000-0000-000000000001"] * 900,
    "bio": "bio " * 900,
    "photo": b"\x00\xff" * 1800,
    "photos": [b"\x00\xff"] * 900,
    "page": f"<a>{'page ' * 900}</a>",
    "docb": f'{{"x": "{"doc " * 900}"}}',
}


@pytest.fixture(scope="module", params=["with keys", "without keys"])
def events(request):
    """The events of a recorded table."""

    def of(table, *key):
        keys, values = messages_of(RECORDED, table)
        texts = debezium_messages(keys if request.param == "with keys" else None, values)
        return unwrap_debezium(texts, key)

    return of


def test_events_end_with_the_rows_of_the_database(events):
    """This covers a snapshot, changes in one transaction, and a truncate with a reload."""
    assert last_rows(events("plain", "id"), ["id"]) == {
        (3,): {"id": 3, "name": "three", "n": Decimal("3.0000")}
    }


def test_changes_of_one_transaction_share_an_instant(events):
    """They have one instant, and the log position orders them."""
    plain = events("plain", "id")
    assert [len([*group]) for _, group in groupby(plain.instants.to_pylist())] == [1, 5, 2]
    positions = [tuple(row.values()) for row in plain.sequence.to_pylist()]
    assert positions == sorted({*positions})


def test_a_table_with_full_replica_identity_has_before_images(events):
    """Updates have their former values. A column that was added later is unmodified in earlier messages."""
    whole = events("whole", "id")
    assert last_rows(whole, ["id"]) == {
        (1,): {"id": 1, "name": "Ada", "amount": Decimal("13.00"), "note": "note " * 900, "city": None},
        (4,): {"id": 4, "name": "Di", "amount": Decimal("1.00"), "note": None, "city": "Oslo"},
    }
    assert whole.has_before.to_pylist() == [False, False, True, True, True, True, False, False]
    assert [row["amount"] for row in whole.before.to_pylist()][2:5] == [
        Decimal("10.00"),
        Decimal("12.50"),
        None,
    ]
    assert whole.unmodified.column_names == ["city"]


def test_a_changed_key_ends_a_record_and_begins_another(events):
    """A deleted record is removed too."""
    assert sorted(last_rows(events("customer", "id", "region"), ["id", "region"])) == [(1, "EU"), (20, "EU")]


def test_unavailable_values_stay_unmodified(events):
    """This covers each type with a placeholder. A NULL in one of `ratios` is Debezium's own."""
    customer = events("customer", "id", "region")
    row = last_rows(customer, ["id", "region"])[1, "EU"]
    assert sorted(customer.unmodified.column_names) == sorted(LONG)
    assert {each: row[each] for each in LONG} == LONG
    assert row["tier"] == "silv"
    assert row["ratios"] is None
    assert customer.before is None


def test_each_postgresql_type_is_read_exactly(events):
    """PostgreSQL's types are mapped as specified."""
    rows = events("customer", "id", "region").rows
    assert {name: value for name, value in rows.slice(0, 1).to_pylist()[0].items() if name != "place"} == {
        "id": 1,
        "region": "EU",
        "name": "Zoë 😀",
        "tier": "gold",
        "mood": "glad",
        "vip": True,
        "small": -32768,
        "big": 9223372036854775807,
        "ratio": 1.5,
        "exact": 0.1,
        "price": Decimal("9999999999.99"),
        "huge": Decimal("-" + "9" * 38),
        "free": "12.34",
        "cash": Decimal("12.34"),
        "born": date(1, 1, 1),
        "wakes": "23:59:59.999999",
        "wakes_there": "10:30:00.5Z",
        "seen": datetime(2024, 2, 29, 12, 0, 0, 123456),
        "seen_ms": datetime(1969, 12, 31, 23, 59, 59, 999000),
        "seen_at": datetime(2024, 2, 29, 11, 0, 0, 123456, UTC),
        "term": 101106789000,
        "tags": ["a", None, "c"],
        "codes": [1, None, -3],
        "long_codes": [9007199254740993],
        "days": [date(2024, 2, 29)],
        "prices": [Decimal("1.10"), Decimal("-2.25")],
        "times": [datetime(2024, 2, 29, 12, tzinfo=UTC)],
        "ids": ["00000000-0000-0000-0000-000000000001"],
        "ratios": [0.5],
        "bio": "short",
        "photo": b"\x00\xff\x10",
        "photos": [b"\x01"],
        "doc": '{"a": 1.10}',
        "docb": '{"b": [1, 2]}',
        "page": "<a>1</a>",
        "ref": "123e4567-e89b-12d3-a456-426614174000",
        "flags": b"\x03",
        "flag": True,
        "address": "10.0.0.1",
        "span": "[1,5)",
    }
    assert rows.schema.field("price").type == pa.decimal128(12, 2)
    assert rows.schema.field("seen_at").type == pa.timestamp("us", "UTC")


def test_a_mariadb_recording_is_read_exactly():
    """Seconds are instants, log files are numbers, and deleted rows have whole images."""
    items = unwrap_debezium(debezium_messages(*messages_of(MARIADB, "item")), ["id"])
    assert last_rows(items, ["id"]).keys() == {(9,)}
    assert items.kinds.to_pylist() == [
        *["upsert"] * 7,
        "delete",
        "delete",
        *["upsert"] * 2,
        "delete",
        "truncate",
        "upsert",
    ]
    assert [tuple(row.values()) for row in items.sequence.to_pylist()] == [
        (1, 2594, 0, False),
        (1, 2594, 0, False),
        (1, 2787, 0, True),
        (1, 3348, 0, True),
        (1, 3348, 1, True),
        (1, 3880, 0, True),
        (1, 3880, 1, True),
        (1, 4081, 0, True),
        (2, 575, 0, True),
        (2, 575, 0, True),
        (2, 1021, 0, True),
        (2, 1581, 0, True),
        (2, 1701, 0, True),
        (2, 1983, 0, True),
    ]
    assert [row["id"] for row in items.before.to_pylist()] == [
        None,
        None,
        1,
        1,
        2,
        None,
        None,
        3,
        4,
        None,
        1,
        2,
        None,
        None,
    ]
    assert items.rows.slice(0, 1).to_pylist() == [
        {
            "id": 1,
            "name": "one",
            "price": Decimal("12.50"),
            "big": Decimal(2**64 - 1),
            "tiny": 1,
            "bits": b"\x03\x00",
            "born": date(2024, 2, 29),
            "wakes": "23:59:59.999999",
            "far": "-838:59:59",
            "seen": datetime(2024, 2, 29, 12, 0, 0, 123456),
            "seen_ms": datetime(2024, 2, 29, 12, 0, 0, 123000),
            "seen_at": datetime(2024, 2, 29, 12, 0, 0, 123456, UTC),
            "y": 2024,
            "kind": "b",
            "flags": "x,z",
            "doc": '{"a": 1.10}',
            "data": b"\x00\xff\x10",
            "f": 1.5,
            "d": 0.1,
            "txt": "t" * 50,
            "city": None,
        }
    ]
