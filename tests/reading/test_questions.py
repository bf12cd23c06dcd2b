"""The worked examples of native.md, and event logs, read from files that Spark did not write."""

import json

import pyarrow as pa
import pytest
from datasets import e, s, word
from remembering import E13, E14, _row, day, lives, number

from backstory.errors import UsageError
from backstory.formats.memory import Memory
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.model.versions_layout import KNOWN_FROM
from backstory.reading import questions
from backstory.reading.files import table_in_files
from backstory.reading.lifetimes import STATED_FROM, STATED_TO
from backstory.reading.options import DiffRequest, ReadRequest, TimelineRequest
from backstory.reading.questions import SYSTEM_COLUMNS
from backstory.stores.iceberg.schema import KEY, LAYOUT
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of

INSTANT = pa.timestamp("us", "UTC")
MEMORY = pa.struct(
    [("role", pa.string()), ("ended_at", INSTANT), ("end_before", INSTANT), ("kind", pa.string())]
)
NATIVE = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.string()),
        ("valid_from", INSTANT),
        ("valid_to", INSTANT),
        ("is_current", pa.bool_()),
        ("recorded_at", INSTANT),
        ("_memory", MEMORY),
    ]
)
EVENTS = pa.schema(
    [
        ("offset", pa.int64()),
        ("op", pa.int32()),
        ("system_time", INSTANT),
        ("event_time", INSTANT),
        ("city", pa.string()),
        ("n", pa.int32()),
    ]
)


@pytest.fixture
def written(tmp_path):
    """Create a table with rows, and open its files."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("backstory", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("reading")

    def made(layout, schema, rows, **properties):
        defaults = {
            LAYOUT: layout,
            KEY: json.dumps([schema.names[0] if layout is Layout.VERSIONS else "city"]),
        }
        names = (f"t{place}" for place in range(99) if not catalog.table_exists(("reading", f"t{place}")))
        name = next(names)
        table = catalog.create_table(("reading", name), schema, properties=defaults | properties)
        table.append(
            pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
        )
        warehouse = EmbeddedCatalog(tmp_path)
        metadata = warehouse.describe(TableName("reading", name))
        with Memory(1 << 30).lease() as lease:
            return TableReader(metadata, warehouse, lease)

    yield made
    catalog.close()


@pytest.fixture
def native(written):
    def made(text, **properties):
        rows = [_row(line.split()) for line in text.strip().splitlines()]
        return written(Layout.VERSIONS, NATIVE, rows, **properties)

    return made


@pytest.fixture
def ledger(written):
    def made(rows, *, ledger):
        names = ("offset", "op", "system_time", "event_time")
        system_columns = {**{name: name for name in names}, "observed": None, "events": ledger}
        return written(Layout.ODF, EVENTS, rows, **{SYSTEM_COLUMNS: json.dumps(system_columns)})

    return made


def lives_in(table):
    return lives(rows_of(table))


def rows_at(files, time=None, known_at=None):
    return table_in_files(files).at(known_at).rows_at(time)


def life(files, key, axis="valid", known_at=None):
    return questions.life(table_in_files(files), TimelineRequest(key, axis=axis, known_at=known_at))


def diff_knowledge(files, first, second, time):
    return questions.diff(table_in_files(files), DiffRequest(first, second, axis="recorded", at=time))


def differing(differences):
    """A word for each difference, such as `changed k v:a>x`."""
    for each in differences.page():
        changes = (f" {name}:{each['before'][name]}>{each['after'][name]}" for name in each["changed"])
        yield f"{each['change']} {each['key']['k']}{''.join(changes)}"


def test_E13_each_known_time_shows_its_own_versions(native):
    """V6, V93, V94, V97, V99: The rows and times equal the example's."""
    files = native(E13)
    assert lives_in(rows_at(files, day(17))) == ["k: c[15,20)"]
    assert lives_in(rows_at(files, day(17), day(2))) == ["k: a[10,20)"]
    assert lives_in(rows_at(files, None, day(1))) == ["k: a[10,)"]
    assert lives_in(rows_at(files, day(20))) == ["k: b[20,)"]
    assert lives_in(rows_at(files, day(20), day(0))) == []
    axes = ("valid_from", "valid_to", "known_from", "known_to")
    stated = [
        "{}[{},{}) known [{},{})".format(each["v"], *(number(each[name]) for name in axes))
        for each in life(files, {"k": "k"}, "both").versions
    ]
    assert stated == [
        "a[10,) known [1,2)",
        "a[10,20) known [2,3)",
        "a[10,15) known [3,)",
        "c[15,20) known [3,)",
        "b[20,) known [2,)",
    ]
    assert [each["v"] for each in life(files, {"k": "k"}).versions] == ["a", "c", "b"]
    assert [each["v"] for each in life(files, {"k": "k"}, known_at=day(2)).versions] == ["a", "b"]
    with pytest.raises(UsageError, match="t0 has no key column x; the key is k"):
        life(files, {"x": "k"})


def test_E14_rewound_versions_stay_visible_at_earlier_known_times(native):
    """V92, V96: The differences between two known times for one instant equal the example's."""
    files = native(E14)
    assert lives_in(rows_at(files)) == ["k: b[20,)"]
    assert list(differing(questions.diff(table_in_files(files), DiffRequest(day(15), day(25))))) == [
        "changed k v:a>b"
    ]

    def learnt(first, second, time):
        return sorted(differing(diff_knowledge(files, day(first), day(second), day(time))))

    assert learnt(0, 1, 15) == ["added k"]
    assert learnt(1, 3, 25) == ["added m", "changed k v:a>x"]
    assert learnt(3, 4, 25) == ["changed k v:x>a", "removed m"]
    assert learnt(1, 5, 25) == ["changed k v:a>b"]
    assert learnt(1, 5, 15) == learnt(2, 3, 15) == []
    pruned = native(E14, **{KNOWN_FROM: day(3).isoformat()})
    for question in (
        lambda: rows_at(pruned, None, day(2.5)),
        lambda: diff_knowledge(pruned, day(2), day(4), day(25)),
        lambda: life(pruned, {"k": "k"}, known_at=day(2)),
    ):
        with pytest.raises(UsageError) as refused:
            question()
        assert refused.value.code == "known-pruned"


def test_the_times_alone_can_be_selected_from_a_table_without_a_key(native):
    known = table_in_files(native(E13, **{KEY: "[]"})).of(ReadRequest(columns="valid_from"))
    assert known.rows_at(day(17)).to_pylist() == [{"valid_from": day(15), "valid_to": day(20)}]


def events(files):
    held = table_in_files(files).statements()
    axes = ("valid_from", "valid_to", STATED_FROM, STATED_TO)
    rows = rows_of(held)
    rows = sorted(rows, key=lambda row: (row["valid_from"], row[STATED_FROM]))
    return [" ".join(word(row[name]) for name in ("n", *axes)) for row in rows]


def test_an_event_holds_until_the_next_event_of_its_record(ledger):
    """A late event for an earlier time ends the previous one sooner."""
    rows = [(place, 0, s(place + 1), e(time), "A", place + 1) for place, time in enumerate((10, 30, 20))]
    assert events(ledger(rows, ledger=False)) == [
        "1 e10 - s1 s2",
        "1 e10 e30 s2 s3",
        "1 e10 e20 s3 -",
        "3 e20 - s3 -",
        "2 e30 - s2 s3",
    ]


def test_a_corrected_event_stays_known_before_its_correction(ledger):
    rows = [(0, 0, s(1), e(10), "A", 1), (1, 2, s(2), e(10), "A", 1), (2, 3, s(2), e(10), "A", 2)]
    files = ledger(rows, ledger=True)
    assert events(files) == ["1 e10 - s1 s2", "2 e10 - s2 -"]
    assert [row["n"] for row in rows_of(rows_at(files))] == [2]
    assert [row["n"] for row in rows_of(rows_at(files, None, s(1)))] == [1]
