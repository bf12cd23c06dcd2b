"""One block per commit, with the hash of the previous one (sections 6.2 and 6.5)."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha3_256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.errors import Violated
from backstory.journal.chain import Block, canonical, from_properties, schema_hash, walk
from backstory.model.layout import Layout
from backstory.model.table import Shape, TableName
from backstory.stores.metadata.table_metadata import TableMetadata

NOON = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
EVENT = {
    "start": 3,
    "end": 5,
    "prev_offset": 2,
    "watermark": "2026-01-31T00:00:00.000000Z",
    "source_state": {"kind": "odf/etag", "value": 'é"\\'},
    "run_id": "r1",
}
BLOCK = Block(2, "ab", NOON, "AddData", EVENT)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def table(*commits):
    """A table whose last commit is the newest. Each has a number, a parent and properties."""
    snapshots = [
        {"snapshot-id": number, "parent-snapshot-id": parent, "timestamp-ms": 0, "summary": properties}
        for number, parent, properties in commits
    ]
    newest = commits[-1][0] if commits else None
    shape = Shape(TableName("a", "b"), (), (), Layout.ODF)
    return TableMetadata(shape, {"snapshots": snapshots, "current-snapshot-id": newest}, "")


def chained(count):
    chain, before = [], None
    for number in range(count):
        chain.append(Block(number, before, NOON, "AddData", {"start": None, "end": None}))
        before = chain[-1].hash
    return chain


def test_a_block_hash_is_the_hash_of_its_canonical_text():
    """The text has sorted keys, no spaces, UTF-8 and microseconds."""
    block = Block(0, None, NOON, "AddData", {"b": "é", "a": 1})
    text = (
        '{"event":{"a":1,"b":"é"},"event_kind":"AddData","prev_block_hash":null,"sequence_number":0,'
        '"system_time":"2026-01-31T12:00:00.000005Z"}'
    )

    assert sha3_256(text.encode()).hexdigest() == block.hash


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": 3},
        {"previous": None},
        {"system_time": NOON.replace(microsecond=6)},
        {"kind": "Seed"},
        {"event": EVENT | {"run_id": None}},
    ],
)
def test_any_change_to_a_block_changes_its_hash(change):
    assert replace(BLOCK, **change).hash != BLOCK.hash


def test_properties_can_be_read():
    """R83: Offsets, watermark, state, run and hash have separate properties."""
    properties = {name.removeprefix("backstory.odf."): value for name, value in BLOCK.properties().items()}

    assert properties.pop("event") == canonical(EVENT)
    assert properties == {
        "sequence": "2",
        "previous-block": "ab",
        "block": BLOCK.hash,
        "system-time": "2026-01-31T12:00:00.000005Z",
        "event-kind": "AddData",
        "offsets": "3,5",
        "watermark": "2026-01-31T00:00:00.000000Z",
        "source-state": canonical(EVENT["source_state"]),
        "run-id": "r1",
    }


def test_missing_values_are_empty_properties():
    properties = Block(0, None, NOON, "AddData", {"start": None, "end": None}).properties()

    assert [] == [name for name, value in properties.items() if not isinstance(value, str)]
    assert 5 == list(properties.values()).count("")


@given(
    event=st.dictionaries(st.text(), JSON).map(
        lambda found: found | {"start": 0, "end": 1, "prev_offset": None}
    ),
    previous=st.none() | st.text("0123456789abcdef", min_size=1),
    time=st.datetimes(timezones=st.just(UTC)),
)
def test_a_block_is_read_as_it_was_written(event, previous, time):
    """R83: The properties contain the whole block, including its hash."""
    block = Block(7, previous, time, "AddData", event)

    assert from_properties(block.properties()) == block
    assert from_properties(block.properties()).hash == block.hash


def test_half_a_surrogate_pair_is_kept():
    """A file name may be invalid UTF-8."""
    block = replace(BLOCK, event=EVENT | {"file": "a\udce9\\"})

    assert block.properties()["backstory.odf.event"].encode()
    assert from_properties(block.properties()) == block


def test_instants_in_events_are_text():
    assert '{"at":"2026-01-31T12:00:00.000005Z"}' == canonical({"at": NOON})


def test_foreign_snapshots_are_no_blocks():
    assert from_properties({"spark.app.id": "local-1"}) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"backstory.odf.sequence": "two"},
        {"backstory.odf.system-time": "noon"},
        {"backstory.odf.event": "{"},
        {"backstory.odf.event": "[]"},
        {"backstory.odf.event": json.dumps(EVENT | {"start": "3"})},
    ],
)
def test_unreadable_properties_are_reported(broken):
    with pytest.raises(Violated, match="cannot be read"):
        from_properties(BLOCK.properties() | broken)


def test_blocks_are_walked_from_the_newest():
    """Compactions in between are skipped."""
    first, second = chained(2)
    dataset = table((1, None, first.properties()), (2, 1, {}), (3, 2, second.properties()))

    assert list(walk(dataset)) == [second, first]


def test_the_walk_ends_where_snapshots_expired():
    *_, last = chained(3)

    assert list(walk(table((9, 8, last.properties())))) == [last]


def test_a_table_without_commits_has_no_blocks():
    assert [] == list(walk(table()))


def test_columns_have_a_hash():
    """Their order does not matter, but names and types do."""
    columns = [("offset", "bigint"), ("a.b`", "string")]

    assert schema_hash(columns) == schema_hash(columns[::-1])
    assert schema_hash(columns) != schema_hash([("offset", "int"), ("a.b`", "string")])
    assert schema_hash(columns) != schema_hash([("offset", "bigint"), ("a.b", "string")])
