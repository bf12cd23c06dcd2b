"""One life through any door: `current`, `as_of`, `diff` and the timeline give the same answers.

Copies of a source have the instants 1 to 5: the capitals of a few countries in five real copies from the
examples. Each door receives them in its own way and has its own layout. The answers use the numbers of the
copies.
"""

import csv
from datetime import UTC, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from datasets import Dataset, e
from destination import Place as Destination
from historizing import Place as Database
from historizing import second
from historizing_on_spark import SparkPlace
from remembering import day
from tables_as_text import instant

from backstory.doors.historize.upkeep import Upkeep
from backstory.doors.native import door
from backstory.doors.native.options import SnapshotRequest
from backstory.model.table import TableName
from backstory.reading import history_queries as statements
from backstory.reading import history_queries as statements_of_differences
from backstory.stores.iceberg.create import drop
from backstory.table import Table

DATA = Path(__file__).parents[2] / "examples/data/countries"
DATES = ("2014-01-01", "2016-01-01", "2018-07-01", "2020-07-01", "2024-07-01")
CODES = ("KAZ", "KOS", "SHN", "UNK")


def copied(date):
    """The countries in a copy: `KAZ:Astana KOS:Pristina`."""
    with (DATA / f"countries-{date}.csv").open(encoding="utf-8", newline="") as file:
        return " ".join(
            f"{row['code']}:{row['capital']}" for row in csv.DictReader(file) if row["code"] in CODES
        )


COPIES = {number: copied(date) for number, date in enumerate(DATES, 1)}
# After each copy: the values that are true then, with the copy at which each starts and the copy at which it
# ends.
TRUE = {
    1: ["KAZ Astana 1 4", "KOS Pristina 1 2", "SHN Jamestown 1 2"],
    2: ["KAZ Astana 1 4", "UNK Pristina 2 -"],
    3: ["KAZ Astana 1 4", "SHN Jamestown 3 -", "UNK Pristina 2 -"],
    4: ["KAZ Nur-Sultan 4 5", "SHN Jamestown 3 -", "UNK Pristina 2 -"],
    5: ["KAZ Astana 5 -", "SHN Jamestown 3 -", "UNK Pristina 2 -"],
}
# The change of each record between two copies.
BECAME = {
    (1, 2): ["removed KOS", "removed SHN", "added UNK"],
    (2, 4): ["changed KAZ Astana>Nur-Sultan", "added SHN"],
    (3, 5): [],
    (5, 1): ["added KOS", "removed UNK"],
}
LIVES = {
    "KAZ": ["KAZ Astana 1 4", "KAZ Nur-Sultan 4 5", "KAZ Astana 5 -"],
    "SHN": ["SHN Jamestown 1 2", "SHN Jamestown 3 -"],
}


def states():
    """The number of each copy, its content, and the content of the copy before it."""
    before = {}
    for number, text in COPIES.items():
        now = dict(word.split(":") for word in text.split())
        yield number, before, now
        before = now


def lines(rows, zero, step):
    """Rows of key, value, start and end, with the numbers of the copies."""

    def number(time):
        if time is None:
            return "-"
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - zero
        return str(since // step) if since % step == timedelta(0) else str(since / step)

    return [f"{key} {value} {number(start)} {number(end)}" for key, value, start, end in rows]


class InWarehouse:
    """Answers from a table of a warehouse."""

    def __init__(self, table, zero, step):
        self.table, self.zero, self.step = table, zero, step

    def lines(self, frame):
        rows = frame.select("k", "a", "valid_from", "valid_to").toArrow().to_pylist()
        return lines((row.values() for row in rows), self.zero, self.step)

    def current(self):
        return self.lines(self.table.current())

    def as_of(self, number):
        return self.lines(self.table.as_of(self.zero + number * self.step))

    def diff(self, first, second):
        times = (self.zero + number * self.step for number in (first, second))
        rows = self.table.diff(*times).orderBy("key").toArrow().to_pylist()
        return [
            " ".join(
                [
                    row["change"],
                    *row["key"].values(),
                    *(f"{row['before'][name]}>{row['after'][name]}" for name in row["changed"]),
                ]
            )
            for row in rows
        ]

    def timeline(self, key):
        return lines(
            (
                (row["k"], row["a"], row["valid_from"], row["valid_to"])
                for row in self.table.timeline(key).versions
            ),
            self.zero,
            self.step,
        )


class InDatabase:
    """Answers from a model's history in a database."""

    def __init__(self, place):
        self.keep = Upkeep(place.model, place.folder, place.target, place.target._engine, "rc_c")
        self.place, self.history = place, self.keep.history()

    def lines(self, query):
        names = ("k", "a", "version_started_at", "version_ended_at")
        rows = [tuple(row[name] for name in names) for row in self.keep.ask(query)]
        return lines(rows, second(0), timedelta(seconds=1))

    def current(self):
        return self.lines(statements.current(self.history))

    def as_of(self, number):
        return self.lines(statements.as_of(self.history, second(number)))

    def diff(self, first, then):
        rows = self.keep.ask(statements_of_differences.diff(self.history, *map(second, (first, then))))
        return [
            f"{row['change']} {row['k']}"
            + (f" {row['old_value']}>{row['new_value']}" if row["column_name"] else "")
            for row in sorted(rows, key=lambda row: row["k"])
        ]

    def timeline(self, key):
        return self.lines(statements.timeline(self.history, key))


@pytest.fixture
def fivetran(sender, store, schema):
    """Fivetran's history mode, with the source's starts and ends."""
    place = Destination.made(sender, store, schema, "k:STRING* a synced start* end active")
    for number, before, now in states():
        changed = [(key, value) for key, value in now.items() if before.get(key) != value]
        gone = before.keys() - now.keys()
        files = {
            "earliest": [f"{key} T{number}" for key, _ in changed],
            "replace": [f"{key} {value} T{number} T{number} TMAX true" for key, value in changed],
            "delete": [f"{key} T{number} T{number}" for key in sorted(gone)],
        }
        heads = {"earliest": "k start", "replace": "k a synced start end active", "delete": "k synced end"}
        place.write(**{kind: "\n".join([heads[kind], *rows]) for kind, rows in files.items() if rows})
    return InWarehouse(Table(store, place.name), instant("T0"), timedelta(seconds=1))


def loaded(place):
    """A model's history of the copies."""
    for number, text in COPIES.items():
        assert place.base(text).load(f"r{number}", number).error is None
    return place


@pytest.fixture
def model_on_spark(store, tmp_path):
    place = loaded(SparkPlace(store, tmp_path))
    yield InWarehouse(Table(store, TableName("rawcore", "rc_c_hist")), second(0), timedelta(seconds=1))
    place.close()


@pytest.fixture
def model_on_duckdb(tmp_path):
    place = loaded(Database("duckdb", "duckdb://", tmp_path))
    yield InDatabase(place)
    place.close()


@pytest.fixture
def odf_snapshot(store, tmp_path):
    """An Open Data Fabric dataset of full copies."""
    dataset = Dataset(store, tmp_path, "{kind: Snapshot, primaryKey: [k]}", columns="k STRING, a STRING")
    for text in COPIES.values():
        assert dataset.push(text.replace(":", ",")).error is None
    return InWarehouse(Table(store, dataset.table.shape.table), e(0), timedelta(days=1))


@pytest.fixture
def native(store):
    """Layout `versions`, by full copies."""
    table = TableName("reading", "one_meaning")
    drop(store, table)
    for number, text in COPIES.items():
        rows = [dict(zip("ka", word.split(":"), strict=True)) for word in text.split()]
        request = SnapshotRequest(into=table, key="k", at=day(number), max_delete_ratio=1)
        assert door.snapshot(store, pa.Table.from_pylist(rows), request).snapshot_id
    return InWarehouse(Table(store, table), day(0), timedelta(days=1))


ON_SPARK = [
    pytest.param(way, marks=pytest.mark.spark)
    for way in ("fivetran", "model_on_spark", "odf_snapshot", "native")
]


@pytest.mark.parametrize("way", [*ON_SPARK, pytest.param("model_on_duckdb", marks=pytest.mark.database)])
def test_all_doors_give_the_same_answers_for_a_record(request, way):
    """Answers agree at every instant, now, and for a record that was removed and returned."""
    life = request.getfixturevalue(way)

    assert TRUE == {number: sorted(life.as_of(number)) for number in COPIES}
    assert TRUE[5] == sorted(life.as_of(5.5)) == sorted(life.current())
    assert life.as_of(0.5) == []
    assert BECAME == {times: life.diff(*times) for times in BECAME}
    assert LIVES == {key: life.timeline(key) for key in LIVES}
