"""Debezium's envelopes become events: operations, instants, log positions, images (V61 to V64)."""

import json
import re
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from debezium_messages import ADA, BOB, DAY, MICROS, message

from backstory.errors import Refused
from backstory.formats.envelopes.debezium import unwrap_debezium
from backstory.formats.envelopes.messages import debezium_messages

NOBODY = "__debezium_unavailable_value"
LSN = "00000027:00000758:0003"


def events(*messages, key=("id",), keys=None, **options):
    """The events of messages in Kafka's form."""
    texts = [None if each is None else json.dumps(each) for each in messages]
    own = None if keys is None else pa.array([each and json.dumps(each) for each in keys], pa.string())
    return unwrap_debezium(debezium_messages(own, pa.array(texts, pa.string())), key, **options)


def rows(unwrapped):
    """`upsert id=1 name=a`, with `.` for unmodified and nothing for NULL."""

    def cells(place):
        for name in unwrapped.rows.column_names:
            value = unwrapped.rows[name][place].as_py()
            unmodified = (
                name in unwrapped.unmodified.column_names and unwrapped.unmodified[name][place].as_py()
            )
            assert not (unmodified and value is not None)
            if unmodified or value is not None:
                yield f"{name}={'.' if unmodified else value}"

    return [" ".join([kind, *cells(place)]) for place, kind in enumerate(unwrapped.kinds.to_pylist())]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (message("c", None, ADA), "upsert id=1 name=Ada"),
        (message("r", None, ADA), "upsert id=1 name=Ada"),
        (message("u", ADA, BOB), "upsert id=1 name=Bob"),
        (message("d", ADA, None), "delete id=1"),
        (message("t"), "truncate"),
    ],
    ids=["create", "read", "update", "delete", "truncate"],
)
def test_each_operation_becomes_its_kind_of_event(sent, expected):
    """A delete contains only its key, and a truncate nothing."""
    assert rows(events(sent)) == [expected]


def test_messages_without_a_row_are_omitted():
    """Tombstones and a program's log messages are omitted, and `places` still refer to the others."""
    unwrapped = events(message("c", None, ADA), None, message("m"), message("d", ADA, None), None)
    assert rows(unwrapped) == ["upsert id=1 name=Ada", "delete id=1"]
    assert unwrapped.places.to_pylist() == [0, 3]


def test_a_tombstone_with_a_schema_is_omitted_too():
    """The JSON converter writes it as `{"schema": null, "payload": null}`."""
    assert rows(events({"schema": None, "payload": None}, message("t"))) == ["truncate"]


def test_a_feed_without_messages_has_no_events():
    """This applies to an empty feed, and to one with only tombstones."""
    for unwrapped in (events(), events(None, None)):
        assert rows(unwrapped) == []
        assert unwrapped.unordered == ""
        assert len(unwrapped.instants) == 0


def test_a_delete_has_the_key_of_its_message():
    """Without it, the before image contains the key."""
    deletes = [message("d", {"id": None, "name": None}, None), message("d", {"id": 2, "name": None}, None)]
    assert rows(events(*deletes, keys=[{"id": 1}, None])) == ["delete id=1", "delete id=2"]
    assert rows(events(message("d"), keys=[{"id": 3}], key=())) == ["delete id=3"]


def test_a_key_column_missing_from_the_row_is_added():
    """Debezium's topic router adds the table's name to the key, not to the row."""
    unwrapped = events(message("c", None, ADA), keys=[{"id": 1, "shard": "eu"}], key=("id", "shard"))
    assert rows(unwrapped) == ["upsert id=1 name=Ada shard=eu"]


def test_a_changed_key_gives_a_delete_and_an_upsert():
    """The messages are a delete and a create."""
    unwrapped = events(message("d", ADA, None), message("c", None, {"id": 2, "name": "Ada"}))
    assert rows(unwrapped) == ["delete id=1", "upsert id=2 name=Ada"]


def test_an_update_of_the_key_ends_the_old_record():
    """This applies if the key is not Debezium's, and the before image contains it."""
    old, new = {"id": 1, "no": 5, "name": "Ada"}, {"id": 1, "no": 6, "name": "Ada"}
    sent = [message("u", before, new) for before in (old, new, None)]
    unwrapped = events(*sent, key=("no",), keys=[{"id": 1}, {"id": 1}, {"id": 1}])
    assert rows(unwrapped) == ["delete no=5", *["upsert id=1 no=6 name=Ada"] * 3]
    assert unwrapped.places.to_pylist() == [0, 0, 1, 2]
    assert unwrapped.has_before.to_pylist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (NOBODY, "text"),
        ("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "bytes in base64"),
        (json.dumps({NOBODY: NOBODY}, separators=(",", ":")), "an hstore"),
        ([NOBODY], "texts"),
        (["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="], "bytes"),
        (["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], "ids"),
        (list(NOBODY.encode()), "integers"),
        ([float(each) for each in NOBODY.encode()], "floats"),
    ],
    ids=lambda each: each if isinstance(each, str) and " " not in each else None,
)
def test_cells_without_a_value_are_unmodified(value, column):
    """Every form in which Debezium marks an unavailable value is recognised."""
    others = [each for each in ([], [1], ["x"], "x") if type(each) is type(value)]
    same = [each for each in others if not each or type(each[0]) is type(value[0])] or [None]
    sent = [message("u", None, {"id": 1, "v": each}) for each in (value, *same)]
    unwrapped = events(*sent)
    assert unwrapped.unmodified.to_pydict() == {"v": [True] + [False] * len(same)}
    assert unwrapped.rows["v"].to_pylist() == [None, *same]


def test_a_key_is_never_unmodified():
    """V50: This holds whatever its text."""
    unwrapped = events(message("c", None, {"id": NOBODY, "v": 1}))
    assert rows(unwrapped) == [f"upsert id={NOBODY} v=1"]


def test_a_configured_placeholder_replaces_debeziums_own():
    """The connector sets it as `unavailable.value.placeholder`."""
    sent = [message("u", None, {"id": 1, "v": each}) for each in ("?", NOBODY)]
    assert rows(events(*sent, unavailable="?")) == ["upsert id=1 v=.", f"upsert id=1 v={NOBODY}"]


def test_a_column_missing_from_a_message_is_unmodified():
    """Messages before and after an ALTER have different columns."""
    unwrapped = events(message("u", None, {"id": 1, "old": 1}), message("u", None, {"id": 1, "new": None}))
    assert rows(unwrapped) == ["upsert id=1 old=1 new=.", "upsert id=1 old=."]


def test_the_instant_of_an_event_is_the_databases_time():
    """It has the database's microseconds. A read without a time has the time of sending."""
    sent = [
        message("u", None, ADA, {"ts_us": MICROS + 1}),
        message("u", None, ADA, {"ts_us": None, "ts_ms": MICROS // 1000 + 1}),
        message("r", None, ADA, {"ts_us": None, "ts_ms": None}),
        message("r", None, ADA, {"ts_us": None, "ts_ms": 0}),
        message("u", None, ADA, {"ts_us": None, "ts_ms": None}),
        message("u", None, ADA, {"ts_us": -1}),
    ]
    assert events(*sent).instants.to_pylist() == [
        DAY + timedelta(microseconds=1),
        DAY + timedelta(milliseconds=1),
        DAY + timedelta(milliseconds=5),
        DAY + timedelta(milliseconds=5),
        None,
        datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    ]


POSITIONS = {
    "postgresql": [{"lsn": 9}, {"lsn": 10}, {"lsn": 2**62}],
    "mysql": [
        {"file": "mysql-bin.000009", "pos": 200, "row": 1},
        {"file": "mysql-bin.000010", "pos": 4, "row": 0},
        {"file": "mysql-bin.000010", "pos": 4, "row": 1},
        {"file": "mysql-bin.000010", "pos": 10, "row": 0},
        {"file": "mysql-bin.1000000", "pos": 4, "row": 0},
    ],
    "mariadb": [{"file": "a.b.9", "pos": 1, "row": 0}, {"file": "a.b.10", "pos": 1, "row": 0}],
    "sqlserver": [
        {
            "commit_lsn": "00000027:00000758:0003",
            "change_lsn": "00000027:00000758:0002",
            "event_serial_no": 1,
        },
        {
            "commit_lsn": "00000027:00000758:0003",
            "change_lsn": "00000027:00000758:0002",
            "event_serial_no": 2,
        },
        {
            "commit_lsn": "00000027:00000758:0003",
            "change_lsn": "00000027:00000758:000a",
            "event_serial_no": 1,
        },
        {
            "commit_lsn": "0000002A:00000001:0001",
            "change_lsn": "0000002A:00000001:0001",
            "event_serial_no": 1,
        },
        {"commit_lsn": "100:1:1", "change_lsn": "100:1:1", "event_serial_no": 1},
    ],
}


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ({}, {"connector": "mysql"}, "connectors: mysql, postgresql."),
        ({}, {"connector": ""}, "connectors: , postgresql."),
        ({"table": "item"}, {"table": "other"}, "tables: item, other."),
        ({"schema": "public", "table": "item"}, {"schema": "old", "table": "item"}, "tables: old/item, public/item."),
        ({"db": "shop", "table": "item"}, {"db": "shop2", "table": "item"}, "tables: shop/item, shop2/item."),
    ],
)  # fmt: skip
def test_V137_messages_of_several_tables_or_connectors_are_refused(one, other, names):
    """The error names them. Messages without a row may be from others."""
    with pytest.raises(Refused) as stop:
        events(message("c", None, ADA, one), message("u", None, ADA, other))
    assert stop.value.code == "several-sources"
    assert stop.value.message.endswith(names)
    assert "separately" in stop.value.remedy
    assert len(events(message("c", None, ADA, one), message("m", None, None, other)).kinds) == 1


@pytest.mark.parametrize("connector", POSITIONS)
def test_events_sort_in_the_order_of_the_log(connector):
    """V131, V132: A snapshot read is before the change at its position. Without a position it has no place."""
    nothing = dict.fromkeys(POSITIONS[connector][0])
    messages = [
        message(op, None, ADA, {"connector": connector, **each})
        for each in POSITIONS[connector]
        for op in ("r", "u")
    ]
    sequence = events(message("r", None, ADA, {"connector": connector, **nothing}), *messages).sequence
    without, *order = [tuple(row.values()) for row in sequence.to_pylist()]
    leads = ["last_commit"] if connector == "postgresql" else []
    assert sequence.column_names == [*leads, *POSITIONS[connector][0], "is_change"]
    assert set(without) == {None}
    assert order == sorted(order)
    assert len(set(order)) == len(order)


def test_postgresql_events_sort_by_the_last_commit_before_them():
    """A transaction may begin before a snapshot read or another commit, and end after it."""
    changes = [
        ("u", 90, None),
        ("r", 100, None),
        ("u", 95, 100),
        ("u", 120, 100),
        ("u", 110, 130),
        ("u", 140, 130),
        ("r", 125, 150),
        ("u", 105, 150),
        ("r", 160, 150),
        ("u", 155, 160),
    ]
    sources = [
        (op, {"lsn": lsn, "sequence": json.dumps([commit and str(commit), str(lsn)])})
        for op, lsn, commit in changes
    ]
    sequence = events(*(message(op, None, ADA, source) for op, source in sources)).sequence
    order = [tuple(row.values()) for row in sequence.to_pylist()]
    assert order == sorted(order)
    assert len(set(order)) == len(order)


def test_sql_server_reads_have_a_partial_position():
    """The missing part sorts before all others."""
    source = {"connector": "sqlserver", "commit_lsn": LSN, "change_lsn": None, "event_serial_no": None}
    assert events(message("r", None, ADA, source)).sequence.to_pylist() == [
        {"commit_lsn": LSN, "change_lsn": "", "event_serial_no": 0, "is_change": False}
    ]


def test_a_change_without_a_position_has_a_null_sequence():
    """V47: The position is NULL, which `null-sequence` refuses."""
    assert events(message("u", None, ADA, {"lsn": None})).sequence.to_pylist() == [
        {"last_commit": None, "lsn": None, "is_change": True}
    ]


@pytest.mark.parametrize(("connector", "unordered"), [("oracle", "oracle"), (None, "unknown")])
def test_events_of_other_connectors_are_unordered(connector, unordered):
    """There is no sequence, and the error names the connector."""
    unwrapped = events(message("c", None, ADA, {"connector": connector}))
    assert unwrapped.sequence.column_names == []
    assert unwrapped.unordered == unordered


@pytest.mark.parametrize(
    ("connector", "images"), [("postgresql", [True, False]), ("mysql", [True, True]), ("x", [True, False])]
)
def test_only_whole_rows_are_before_images(connector, images):
    """PostgreSQL logs only the key of a deleted row, and Debezium fills in the rest."""
    sent = [
        message(op, ADA, BOB if op == "u" else None, {"connector": connector, "file": "a.1"}) for op in "ud"
    ]
    unwrapped = events(*sent)
    assert unwrapped.has_before.to_pylist() == images
    assert unwrapped.before.to_pylist() == [ADA if each else dict.fromkeys(ADA) for each in images]


def test_a_before_image_with_unavailable_values_is_ignored():
    """Oracle sends such images before a change of a large object."""
    sent = [message("u", {"id": 1, "name": each}, BOB, {"connector": "oracle"}) for each in (NOBODY, "Ada")]
    assert events(*sent).has_before.to_pylist() == [False, True]


def test_images_before_and_after_share_a_type():
    """JSON may write 2.0 as 2, so an integer before and a float after are both floats."""
    unwrapped = events(message("u", {"id": 1, "v": 1}, {"id": 1, "v": 2.5}))
    assert unwrapped.rows.schema.field("v").type == unwrapped.before.schema.field("v").type == pa.float64()


def test_structs_of_a_frame_keep_their_types():
    """The structs may be from `from_json`, with or without the outer envelope, in any number of chunks."""
    kinds = pa.struct([("id", pa.int32()), ("born", pa.date32())])
    day = datetime(2024, 2, 29).date()
    columns = {
        "op": pa.array(["c", None, "d"]),
        "before": pa.array([None, None, {"id": 1, "born": None}], kinds),
        "after": pa.array([{"id": 1, "born": day}, None, None], kinds),
        "source": pa.array([{"connector": "postgresql", "ts_ms": 0, "lsn": 1}, None, {"connector": None}]),
    }
    table = pa.table(columns)
    payload = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    wrapped = pa.table({"schema": pa.nulls(3), "payload": payload})
    for each in (table, chunked, wrapped):
        unwrapped = unwrap_debezium(each, ["id"])
        assert rows(unwrapped) == ["upsert id=1 born=2024-02-29", "delete id=1"]
        assert unwrapped.rows.schema == pa.schema(list(kinds))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (message("x", None, ADA), "message 2: `op` is `x`"),
        (message(1, None, ADA), "mixed"),
        ({"id": 1, "name": "Ada"}, "message 2: it has no `op`"),
        ({"schema": None, "payload": message("c", None, ADA), "x": 1}, "message 2: it has no `op`"),
        ({"ddl": "CREATE TABLE"}, "message 2: it has no `op`"),
        (message("u", ADA, None), "message 2: it has no `after`"),
        (message("d", None, None), "message 2: it is a delete"),
        (message("d", {"name": "Ada"}, None), "neither its key nor `before` has id"),
        (message("u", None, "Ada"), "mixed"),
        (message("u", None, ADA, {"lsn": "7"}), "mixed"),
        (message("u", None, ADA, {"ts_us": 2**62}), "message 2: `source.ts_us` is outside"),
        (message("u", None, ADA, {"ts_us": None, "ts_ms": 2**62}), "message 2: `source.ts_ms` is outside"),
        (message("u", None, ADA, {"connector": ["mysql"]}), "mixed"),
        (message("u", None, {"id": "1"}), "mixed"),
    ],
)
def test_a_message_without_a_valid_change_is_refused(sent, words):
    """The error contains the number of the message and the fault."""
    with pytest.raises(Refused) as stop:
        events(message("c", None, {"id": 1, "name": "secret"}), sent)
    if words == "mixed":
        assert stop.value.code == "mixed-types"
    else:
        assert stop.value.code == "malformed-row"
        assert words in stop.value.message
    assert stop.value.remedy
    assert "secret" not in json.dumps(stop.value.to_dict())


@pytest.mark.parametrize(
    ("connector", "position", "words"),
    [
        ("postgresql", {"lsn": "0/16B3748"}, "`source.lsn`"),
        ("postgresql", {"lsn": 7, "sequence": "7"}, "`source.sequence`"),
        ("mysql", {"file": "binlog", "pos": 1, "row": 0}, "`source.file`"),
        ("mysql", {"file": 3, "pos": 1, "row": 0}, "`source.file`"),
        ("sqlserver", {"commit_lsn": "0x2700"}, "`source.commit_lsn`"),
    ],
)
def test_an_unreadable_log_position_is_refused(connector, position, words):
    """Such a position would sort wrongly as text."""
    with pytest.raises(Refused, match=re.escape(words)) as stop:
        events(message("u", None, ADA, {"connector": connector, "lsn": None, **position}))
    assert "message 1" in stop.value.message


def test_large_texts_and_lists_become_ordinary_ones():
    """This includes the types of pandas and Polars."""
    kinds = pa.struct([("id", pa.large_string()), ("tags", pa.large_list(pa.large_string()))])
    source = pa.array([{"connector": "mysql", "ts_ms": 0, "file": "a.1", "pos": 1, "row": 0}])
    source = source.cast(
        pa.struct(
            [
                (each.name, pa.large_string() if pa.types.is_string(each.type) else each.type)
                for each in source.type
            ]
        )
    )
    table = pa.table(
        {
            "op": pa.array(["c"], pa.large_string()),
            "after": pa.array([{"id": "a", "tags": ["b"]}], kinds),
            "source": source,
        }
    )
    unwrapped = unwrap_debezium(table, ["id"])
    assert unwrapped.rows.to_pylist() == [{"id": "a", "tags": ["b"]}]
    assert unwrapped.rows.schema == pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string()))])
    assert unwrapped.unordered == ""


def test_repeated_column_names_are_refused():
    """The intended column is unknown."""
    after = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
    with pytest.raises(Refused, match="has `id` twice"):
        unwrap_debezium(pa.table({"op": ["c"], "after": after}), ["id"])


def test_messages_with_parsed_schemas_are_refused():
    """Only the texts distinguish a decimal from its bytes."""
    payload = pa.array([message("c", None, ADA)])
    table = pa.table({"schema": pa.array([{"type": "struct"}]), "payload": payload})
    with pytest.raises(Refused, match="give the messages as text"):
        unwrap_debezium(table, ["id"])
