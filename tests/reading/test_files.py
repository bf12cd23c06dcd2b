"""A small table has the same rows, types and refusals from its files as from Spark, on every layout.

Each table contains many small random lives, so that one query covers all of them.
"""

import json
import random
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from attrs import evolve
from depth import DEPTH
from specification.differences import in_order, rank
from specification.lifetimes import SpannedRow
from spoilt_histories import checked_twice

from backstory.cli.app import run
from backstory.errors import BackstoryError, UsageError
from backstory.formats.memory import Memory
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.reading import pages, questions
from backstory.reading.files import table_in_files
from backstory.reading.frames import table_in_session
from backstory.reading.options import EVERYTHING, DiffRequest, ReadRequest, TimelineRequest
from backstory.reading.pages import change_times, first_rows_at, page
from backstory.reading.questions import SYSTEM_COLUMNS, order_columns
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.iceberg.schema import KEY, LAYOUT
from backstory.stores.iceberg.store import existing
from backstory.stores.metadata import table_rows as rows_module
from backstory.stores.metadata.catalogs import EmbeddedCatalog
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.metadata.values import rows_of
from backstory.stores.table_files import TableFiles
from backstory.table import Table

ZERO = datetime(2024, 1, 1, tzinfo=UTC)
DAYS = 8
LETTERS = [f"{letter}{number}" for letter in "abcdefgh" for number in range(9)]
SPAN = "valid_from TIMESTAMP, valid_to TIMESTAMP"
MEMORY = "STRUCT<role: STRING, ended_at TIMESTAMP, end_before: TIMESTAMP>".replace("ended_at ", "ended_at: ")
NATIVE = f"k STRING, v DOUBLE, {SPAN}, is_current BOOLEAN, recorded_at TIMESTAMP, _memory {MEMORY}"
SENT = "k STRING, v DOUBLE, _fivetran_start TIMESTAMP, _fivetran_end TIMESTAMP, _fivetran_active BOOLEAN"
HIST = "t_key STRING, k STRING, v DOUBLE, version_started_at TIMESTAMP, version_ended_at TIMESTAMP, version_state STRING"
EVENTS = "offset BIGINT, {}system_time TIMESTAMP, event_time {}, k STRING, v DOUBLE"


def day(number):
    return None if number is None else ZERO + timedelta(days=number)


def some(chance, *more):
    """This day, or a random one."""
    return day(chance.choice([*range(DAYS), *more]))


def value(chance):
    return chance.choice([None, 0.0, -0.0, float("nan"), 1.5])


def key(chance):
    return chance.choice([*"abcdefgh", None])


def native(chance):
    start = some(chance)
    memory = (chance.choice([None, None, "past", "fact"]), some(chance, None, None), some(chance, None))
    end = chance.choice([start, None, *map(day, range(DAYS))])
    memory = memory if any(memory) else None
    return key(chance), value(chance), start, end, end is None, some(chance), memory


def sent(chance):
    end = chance.choice([*map(day, range(DAYS)), datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)])
    start = day(DAYS * chance.random())  # if two versions begin at one instant, Spark ends either
    return key(chance), value(chance), start, end, chance.choice([True, False, False, None])


def hist(chance):
    return chance.choice("abc"), key(chance), value(chance), some(chance), some(chance, None, None), "new"


def events(*ops, time=some):
    def made(chance):
        op = (chance.choice(ops),) if ops else ()
        return next(chance.numbers), *op, some(chance), time(chance), key(chance), value(chance)

    return made


def naive(chance):
    return key(chance), value(chance), some(chance).replace(tzinfo=None), *_end(chance, None, None)


def dated(chance):
    start = some(chance)
    return (
        key(chance),
        value(chance),
        start.date(),
        *_end(chance, None, date(9999, 12, 31)),
        chance.choice(["True", "False", None]),
    )


def _end(chance, *others):
    end = some(chance)
    others = [*others, end.date() if isinstance(others[-1], date) else end.replace(tzinfo=None)]
    return (chance.choice(others),)


def apart(chance):
    """The next version of a record, of any length. Nothing follows a version without an end."""
    record = chance.choice([each for each in LETTERS if chance.ends.get(each, 0) is not None])
    start = chance.ends.get(record, 0) + chance.choice([0, 1])
    end = chance.ends[record] = chance.choice([None, *[start + 1] * 3, start + 2])
    moved = chance.choice([None, start + 1])
    memory = None if moved is None else (None, day(moved), None)
    return record, value(chance), day(start), day(end), end is None, day(start), memory


def sent_apart(chance):
    record, v, start, end, still, *_ = apart(chance)
    return record, v, start, datetime(9999, 12, 31, tzinfo=UTC) if end is None else end, still


def log(op=None, observed=None, *, ledger=False):
    names = {
        "offset": "offset",
        "op": op,
        "system_time": "system_time",
        "event_time": "event_time",
        "observed": observed,
    }
    return {SYSTEM_COLUMNS: json.dumps({**names, "events": ledger})}


def day_of(chance):
    return some(chance).date()


# Layout, DDL, key, properties, and the function that draws a row.
TABLES = {
    "native": (Layout.VERSIONS, NATIVE, "k", {}, native),
    "sent": (Layout.FIVETRAN_HISTORY, SENT, "k", {}, sent),
    "sent_older": (Layout.FIVETRAN_HISTORY, SENT, "k", {"format-version": "2"}, sent),
    "lives": (Layout.VERSIONS, NATIVE, "k", {}, apart),
    "sent_lives": (Layout.FIVETRAN_HISTORY, SENT, "k", {}, sent_apart),
    "hist": (Layout.HIST, HIST, "k", {}, hist),
    "sqlmesh": (Layout.SQLMESH, "k STRING, v DOUBLE, valid_from TIMESTAMP_NTZ, valid_to TIMESTAMP_NTZ", "k", {}, naive),
    "dbt": (Layout.DBT, "k STRING, v DOUBLE, dbt_valid_from DATE, dbt_valid_to DATE, dbt_is_deleted STRING", "k", {}, dated),
    "snapshot": (Layout.ODF, EVENTS.format("observed STRING, ", "TIMESTAMP"), "k", log(observed="observed"), events(*"IUD")),
    "operations": (Layout.ODF, EVENTS.format("op INT, ", "DATE"), "k", log("op"), events(0, 1, 2, 3, None, time=day_of)),
    "timed": (Layout.ODF, EVENTS.format("observed STRING, ", "TIMESTAMP"), "event_time,k", log(observed="observed"), events(*"IUD")),
    "ledger": (Layout.ODF, EVENTS.format("op INT, ", "TIMESTAMP"), "k", log("op", ledger=True), events(0, 2, 3)),
    "append": (Layout.ODF, EVENTS.format("", "TIMESTAMP"), "", log(ledger=True), events()),
}  # fmt: skip


# Tables whose records have one version at a time. With several, a difference would use any of them.
APART = {"lives", "sent_lives", "snapshot", "operations", "timed", "append"}


# Kinds of changes for chosen columns. They do not depend on the layout, so most layouts run only before a
# release.
CHOSEN = dict.fromkeys(APART if DEPTH == "laws" else ["lives"], ("removed", "changed"))
# Tables whose laws are checked. Random rows break nearly all laws.
BROKEN = {"sent", "operations", "ledger", "append"}
# Tables with two commits, and with rows that were deleted since.
DELETED = {"native", "sent", "sent_older"}


class Chance(random.Random):
    """A random generator with a fixed seed, the row numbers, and the last end of each record."""

    def __init__(self):
        super().__init__(7)
        self.numbers = iter(range(10_000))
        self.ends = {}


def table(store, name, layout, columns, key="", properties=()):
    table_name = TableName("small", name)
    drop(store, table_name)
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.small")
    all_properties = {
        LAYOUT: layout,
        KEY: json.dumps(key.split(",") if key else []),
        "format-version": "3",
        **dict(properties),
    }
    all_properties |= dict.fromkeys(("write.delete.mode", "write.update.mode"), "merge-on-read")
    all_properties |= {
        f"write.parquet.row-group-{name}": "9" for name in ("size-bytes", "check-min-record-count")
    }
    listed = ", ".join(f"'{each}' = '{value}'" for each, value in all_properties.items())
    store.spark.sql(
        f"CREATE TABLE {store.sql_name(table_name)} ({columns}) USING iceberg TBLPROPERTIES ({listed})"
    )
    return table_name


def write(store, name, rows):
    into = store.sql_name(name)
    store.spark.createDataFrame(rows, store.spark.table(into).schema).coalesce(1).writeTo(into).append()


def files_of(warehouse, name, memory=1 << 30):
    catalog = EmbeddedCatalog(warehouse)
    with Memory(memory).lease() as lease:
        return TableReader(catalog.describe(name), catalog, lease)


def shown(value):
    """A value by type and digits. Every name of UTC is equal."""
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    return [shown(each) for each in value] if isinstance(value, list) else repr(value)


def lines(rows):
    return sorted(str(shown(dict(each))) for each in rows)


def same(small, large):
    """Check that names, types and rows are equal."""
    assert small.schema.names == large.schema.names
    assert [each.type for each in small.schema] == [each.type for each in large.schema]
    assert lines(rows_of(small)) == lines(large.to_pylist(maps_as_pydicts="strict"))
    return small.num_rows


def rows_at(files, time=None, known_at=None, request=EVERYTHING, limit=None):
    return first_rows_at(files, time, evolve(request, known_at=known_at), limit)


def diff(files, first, second, **options):
    return questions.diff(table_in_files(files), DiffRequest(first, second, **options))


def life(files, key):
    return questions.life(table_in_files(files), TimelineRequest(key))


def life_of_frames(store, name, key):
    return questions.life(table_in_session(store, name), TimelineRequest(key))


def same_differences(small, frame):
    assert lines(small.page()) == lines(frame.toArrow().to_pylist(maps_as_pydicts="strict"))
    return len(small)


# All run before a release. At the gate these are left out, because others cover their layout and questions.
CONTAINED = () if DEPTH == "laws" else ("sent_lives", "timed")


@pytest.mark.parametrize("name", [name for name in TABLES if name not in CONTAINED])
def test_reading_from_files_equals_reading_with_spark(store, warehouse, name, monkeypatch):
    layout, columns, of_key, properties, made = TABLES[name]
    chance = Chance()
    table_name = table(store, name, layout, columns, of_key, properties)
    if name in DELETED:
        write(store, table_name, [made(chance) for _ in range(60)])
        store.spark.sql(f"DELETE FROM {store.sql_name(table_name)} WHERE k LIKE 'a%' OR k LIKE 'h%'")
    write(store, table_name, [made(chance) for _ in range(60)])
    files, at, then = files_of(warehouse, table_name), day(4.5), day(5.5)
    first = existing(store, table_name).commits[0].committed_at
    spark = Table(store, table_name)
    held = table_in_files(files).versions()
    large = table_in_session(store, table_name).versions().toArrow()
    assert same(held, large) > 3
    moved = {
        micros for name in ("valid_from", "valid_to") for micros in large[name].cast("int64").to_pylist()
    }
    assert moved - {None} <= set(change_times(files).instants.tolist())
    if of_key:
        each_record_alone(files, large, of_key.split(","), monkeypatch)
        # The least keys of dbt's rows have no valid row, so all rows would be read.
        assert the_first_alone(files, large, at, monkeypatch) or name == "dbt"
        page_by_page(files, large, at, monkeypatch)
    if layout in {Layout.VERSIONS, Layout.ODF}:
        same(rows_at(files, at, then), spark.as_of(at, known_at=then).toArrow())
        statements = table_in_files(files).statements()
        assert same(statements, table_in_session(store, table_name).statements().toArrow()) > 3
    if name in APART:
        assert same_differences(diff(files, day(2.5), at), spark.diff(day(2.5), at)) > 1
        learnt = diff(files, first, then, axis="recorded", at=at)
        same_differences(learnt, spark.diff(first, then, axis="recorded", at=at))
        gone = diff(files, day(1.5), day(6.5), through=bool(of_key))
        assert same_differences(gone, spark.diff(day(1.5), day(6.5), through=bool(of_key))) > 1
        for kind in CHOSEN.get(name, ()):
            few = diff(files, day(2.5), at, columns="v", change=kind)
            same_differences(few, spark.diff(day(2.5), at, columns="v", change=kind))
    if name in BROKEN:
        assert checked_twice(store, table_name)
    if name in DELETED:
        for known_at in (first, ZERO):
            assert ask(lambda: rows_at(files, at, known_at)) == ask(
                lambda: spark.as_of(at, known_at=known_at).toArrow()
            )
        small, large = life(files, {"k": "b"}), life_of_frames(store, table_name, {"k": "b"})
        assert lines(small.versions) == lines(large.versions)
        assert (small.columns, small.title) == (large.columns, large.title)


def times(rows, name):
    """Microseconds since 1970."""
    return rows[name].cast("int64")


def each_record_alone(files, large, key, monkeypatch):
    """Every record's versions equal Spark's, even if the table is too large to be read whole."""
    records = {tuple(row[name] for name in key): [] for row in large.to_pylist()}
    for row in large.to_pylist():
        records[tuple(row[name] for name in key)].append(row)
    with monkeypatch.context() as less:
        for bound in ("MOST_ROWS", "MOST_IN_ARROW"):
            less.setattr(rows_module, bound, 40)
        with pytest.raises(Unreadable, match="rows"):
            table_in_files(files).versions()
        for values, rows in records.items():
            if None not in values:
                held = (
                    table_in_files(files).of(ReadRequest(key=dict(zip(key, values, strict=True)))).versions()
                )
                assert lines(rows_of(held)) == lines(rows)


def the_first_alone(files, large, at, monkeypatch):
    """The first rows equal Spark's, even if the table is too large, or are left to Spark."""
    spans = zip(times(large, "valid_from").to_pylist(), times(large, "valid_to").to_pylist(), strict=True)
    holds = [SpannedRow(place, *span).holds(micros_of(at)) for place, span in enumerate(spans)]
    order, answered = order_columns(files.table.shape, large.column_names), 0
    holding = in_order([row for row, held in zip(rows_of(large), holds, strict=True) if held], order)
    with monkeypatch.context() as less:
        for bound in ("MOST_ROWS", "MOST_IN_ARROW"):
            less.setattr(rows_module, bound, files.table.rows - 1)
        for name, value in (("FEWEST", 1), ("ROWS_FOR_ONE", 2)):
            less.setattr(pages, name, value)
        for limit in (1, 3):
            with suppress(Unreadable):
                rows = in_order(rows_of(rows_at(files, at, None, EVERYTHING, limit)), order)
                assert list(map(rank, rows[:limit])) == list(map(rank, holding[:limit]))
                answered += 1
    return answered


def page_by_page(files, large, at, monkeypatch):
    """Together, the pages in key order contain all of Spark's rows once, with and without a filter."""
    with monkeypatch.context() as less:
        for name, value in (("FEW", 0), ("FEWEST", 1), ("ROWS_FOR_ONE", 2)):
            less.setattr(pages, name, value)
        for where in ({}, {"v": "1.5"}):
            wanted = [
                row
                for row, start, end in zip(
                    rows_of(large),
                    times(large, "valid_from").to_pylist(),
                    times(large, "valid_to").to_pylist(),
                    strict=True,
                )
                if SpannedRow(0, start, end).holds(micros_of(at)) and (not where or row["v"] == 1.5)
            ]
            rows, after = [], None
            while (part := page(files, at, where=where, after=after, limit=3)).more:
                rows += part.rows
                last = [part.rows[-1][name] for name in part.key]
                after = dict(zip(files.table.shape.source_key, last, strict=True))
            assert lines([*rows, *part.rows]) == lines(wanted)


def ask(question):
    """The rows of an answer, or the refusal's code."""
    try:
        return lines(question().to_pylist(maps_as_pydicts="strict"))
    except BackstoryError as refused:
        return refused.code


TYPES = """k INT, b BOOLEAN, i INT, f FLOAT, n DECIMAL(9, 2), day DATE, at TIMESTAMP, naive TIMESTAMP_NTZ, t STRING,
    raw BINARY, s STRUCT<x: INT, y: ARRAY<STRING>>, m MAP<STRING, DECIMAL(4, 1)>, old STRING, _fivetran_deleted BOOLEAN"""
OLDER = """(1, true, 7, 1.5, 12.34, DATE '0001-01-01', TIMESTAMP '1500-01-01 00:00:00.000001Z',
    TIMESTAMP_NTZ '2024-03-31 02:30:00', 'a', X'00FF', named_struct('x', 1, 'y', array('p', null)),
    map('a', 1.5, 'b', null), 'gone', false), (2, null, null, float('nan'), null, null, null, null, '', X'', null,
    map(), null, null), (3, false, 1, -0.0, 0, null, null, null, null, null, named_struct('x', null, 'y', null), null,
    null, true), (4, false, 1, 1, 1, null, null, null, null, null, null, null, null, false)"""
CHANGES = (
    "RENAME COLUMN t TO text",
    "DROP COLUMN old",
    "ALTER COLUMN i TYPE BIGINT",
    "ALTER COLUMN f TYPE DOUBLE",
    "ALTER COLUMN n TYPE DECIMAL(12, 2)",
    "ADD COLUMN later STRING",
    "ADD COLUMN s.z INT",
)


def test_values_of_every_type_equal_sparks_even_in_older_files(store, warehouse, capsys, monkeypatch):
    """Renamed, dropped, wider and newer columns and deleted rows are read, and Spark is not started."""
    table_name = table(store, "types", Layout.FIVETRAN_LIVE, TYPES, "k")
    into = store.sql_name(table_name)
    store.spark.sql(f"INSERT INTO {into} VALUES {OLDER}")
    first = existing(store, table_name).commits[0].committed_at
    for change in CHANGES:
        store.spark.sql(f"ALTER TABLE {into} {change}")
    store.spark.sql(
        f"INSERT INTO {into} (k, i, f, n, text, later) VALUES (5, 1099511627776L, 0.1D, 9999999999.25, 'ä', 'new')"
    )
    store.spark.sql(f"DELETE FROM {into} WHERE k = 4")
    spark, files = Table(store, table_name), files_of(warehouse, table_name)
    assert same(rows_at(files), spark.current().toArrow()) == 3
    assert same(rows_at(files, None, first), spark.current(known_at=first).toArrow()) == 3
    monkeypatch.setenv("JAVA_HOME", str(warehouse / "none"))
    assert run(["current", str(table_name), "--warehouse", str(warehouse), "--output", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["k"], row["n"], row["raw"], row["at"]) for row in rows] == [
        (1, "12.34", "00ff", "1500-01-01T00:00:00.000001Z"),
        (2, None, "", None),
        (5, "9999999999.25", None, None),
    ]
    for bound in ("MOST_ROWS", "MOST_IN_ARROW"):
        monkeypatch.setattr(rows_module, bound, 4)
    for name in ("FEWEST", "ROWS_FOR_ONE"):
        monkeypatch.setattr(pages, name, 1)
    assert rows_at(files, None, None, EVERYTHING, 1)["k"].to_pylist() == [1]
    for options, keys in ((["--limit", "1"], [1]), (["--key", "5"], [5]), (["--key", "3"], [])):
        assert (
            run(["current", str(table_name), "--warehouse", str(warehouse), "--output", "json", *options])
            == 0
        )
        assert [row["k"] for row in json.loads(capsys.readouterr().out)] == keys


def test_a_table_larger_than_memory_is_not_read_from_files(store, warehouse):
    """The reader of files raises an error, so that Spark answers."""
    table_name = table(store, "plain", Layout.HIST, HIST.replace("k STRING", "k DOUBLE"), "k")
    assert rows_at(files_of(warehouse, table_name)).num_rows == 0
    write(store, table_name, [("a", 1.0, 1.0, day(1), None, "new")])
    assert rows_at(files_of(warehouse, table_name)).num_rows == 1
    with pytest.raises(Unreadable, match="memory"):
        rows_at(files_of(warehouse, table_name, memory=60))


KEYED = """t_key STRING, i BIGINT, n DECIMAL(10, 2), day DATE, at TIMESTAMP, naive TIMESTAMP_NTZ, f DOUBLE, b BOOLEAN,
    raw BINARY, t STRING, version_started_at TIMESTAMP, version_ended_at TIMESTAMP, version_state STRING"""
KEYED_ROWS = """('a', 3, 1.00, DATE '2024-01-01', TIMESTAMP '2024-01-01 00:00:00Z', TIMESTAMP_NTZ '2024-01-01 00:00:00', 0.1,
    true, X'FF', '3'), ('b', 1, 1.01, DATE '2024-02-01', TIMESTAMP '2024-01-01 10:00:00Z',
    TIMESTAMP_NTZ '2023-12-31 19:00:00', double('NaN'), false, X'00', 'x=1')"""
# The column, spellings of a value, and the row that they name.
SPELLINGS = {
    "i": (["3", " 3", 3, 3.0, {"i": "3"}], "a"),
    "n": (["1.010", Decimal("1.01"), 1.01], "b"),
    "day": (["2024-02-01", date(2024, 2, 1)], "b"),
    "at": (["2024-01-01T11:00:00+01:00", "2024-01-01 10:00", datetime(2024, 1, 1, 10, tzinfo=UTC)], "b"),
    "naive": (["2023-12-31T19:00:00", datetime(2023, 12, 31, 19)], "b"),
    "f": (["nan", float("nan")], "b"),
    "b": (["false", False], "b"),
    "raw": (["ff", b"\xff"], "a"),
    "t": (["3", 3], "a"),
}
NO_KEYS = {
    "i": ["3.7", 3.7, True, "1e1", None],
    "n": ["1.005", "1.014", 1.005],
    "day": ["2024", "2024-01", "2024-02-01 17:00:00", datetime(2024, 2, 1)],
    "at": ["2024", "2024-01-01", datetime(2024, 1, 1), "2024-01-01T10:00:00.0000001Z"],
    "naive": ["2024-01-01T00:00:00+05:00", "2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=UTC)],
    "f": ["0.10000000000000001", True],
    "b": ["f", "1", 1],
    "raw": ["abc"],
    "t": [3.0, True],
}


def test_every_reader_finds_the_record_of_a_key_or_refuses_the_key(store, warehouse):
    """From files and on Spark, `timeline`, `as_of` and `current` find one record, or raise `other-key`."""
    table_name = table(store, "keyed", Layout.HIST, KEYED, "i")
    ends = "TIMESTAMP '2024-01-02 00:00:00Z' AS s, CAST(NULL AS TIMESTAMP) AS e, 'new' AS w"
    store.spark.sql(f"INSERT INTO {store.sql_name(table_name)} SELECT *, {ends} FROM VALUES {KEYED_ROWS}")
    into = store.sql_name(table_name)
    for column, (spellings, row) in SPELLINGS.items():
        store.spark.sql(f"ALTER TABLE {into} SET TBLPROPERTIES ('{KEY}' = '[\"{column}\"]')")
        spark, files = Table(store, table_name), files_of(warehouse, table_name)
        value = {"a": "3", "b": "x=1"}[row]
        for spelling in spellings:
            lives = life(files, spelling), life_of_frames(store, table_name, spelling)
            assert [[each["t"] for each in timeline.versions] for timeline in lives] == [[value]] * 2, (
                column,
                spelling,
            )
            assert lives[0].title == lives[1].title
        chosen = ReadRequest(key=spellings[0], columns=["t"])
        small = (
            rows_at(files, day(3), None, chosen),
            rows_at(files, None, None, chosen),
        )
        large = (
            spark.as_of(day(3), key=spellings[0], columns="t"),
            spark.current(key=spellings[0], columns="t"),
        )
        assert [same(one, frame.toArrow()) for one, frame in zip(small, large, strict=True)] == [1, 1]
        for spelling in NO_KEYS[column]:
            for question in (
                lambda key: life(files, key),
                lambda key: life_of_frames(store, table_name, key),
                lambda key: rows_at(files, day(3), None, ReadRequest(key={column: key})),
                lambda key: spark.current(key={column: key}),
            ):
                with pytest.raises(UsageError) as caught:
                    question(spelling)
                assert caught.value.code == "other-key", (column, spelling)
    with pytest.raises(UsageError) as caught:
        spark.current(columns=["t", "none"])
    assert caught.value.code == "unknown-column"


PARTED = """CREATE TABLE {t} (t_key STRING, k STRING, v DOUBLE, version_started_at TIMESTAMP,
    version_ended_at TIMESTAMP, version_state STRING) USING iceberg PARTITIONED BY (bucket(4, k))
    TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read', '{layout}' = 'hist', '{key}' = '["k"]')"""


class Noted(TableFiles):
    """Local files that record when a file of rows is opened."""

    def __init__(self, opened):
        super().__init__()
        self.noted = opened

    @contextmanager
    def parquet(self, location):
        self.noted.append(location)
        with super().parquet(location) as file:
            yield file


def test_files_that_cannot_hold_the_record_are_not_opened(store, warehouse, monkeypatch):
    """Deletion vectors are not read either. Files from before the partitioning are selected by bounds."""
    table_name = TableName("small", "parted")
    into = store.sql_name(table_name)
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {store.catalog}.small")
    store.spark.sql(PARTED.format(t=into, layout=LAYOUT, key=KEY))
    rows = "SELECT concat(k, v), concat('key ', k), v, TIMESTAMP '2024-01-01' + make_interval(0, 0, 0, v), NULL, 'new'"
    for first in (0, 20):
        store.spark.sql(f"INSERT INTO {into} {rows} FROM (SELECT id + {first} k, 1 v FROM range(20))")
    store.spark.sql(f"DELETE FROM {into} WHERE k IN ('key 3', 'key 30') OR k LIKE 'key 1%'")
    store.spark.sql(f"ALTER TABLE {into} DROP PARTITION FIELD bucket(4, k)")
    store.spark.sql(f"INSERT INTO {into} {rows} FROM (SELECT id + 5 k, 2 v FROM range(3))")
    large = lines(Table(store, table_name).current().toArrow().to_pylist())
    for bound in ("MOST_ROWS", "MOST_IN_ARROW"):
        monkeypatch.setattr(rows_module, bound, 3)
    together = []
    with Memory(1 << 30).lease() as lease:
        catalog, opened = EmbeddedCatalog(warehouse), []
        described = replace(catalog.describe(table_name), files=Noted(opened))
        files = TableReader(described, catalog, lease)
        for number in range(40):
            opened.clear()
            together += rows_of(rows_at(files, None, None, ReadRequest(key=f"key {number}")))
            assert len(opened) <= 3
    assert lines(together) == large
