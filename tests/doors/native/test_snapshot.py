"""Full copies into tables of layout `versions` on Spark: the plan gives the rule's rows, and what is refused."""

import json
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from backstory.errors import BackstoryError
from backstory.model.remembered import MEMORY_SINCE, SETTLED, Role, Told
from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing
from backstory.strategies.copies.rule import Copy, Row, Table, take
from backstory.warehouse import Warehouse

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def day(number):
    return DAY + timedelta(days=number)


def days(instant):
    return None if instant is None else (instant - DAY).days


@pytest.fixture
def native(store):
    """The warehouse, with names for tables that no other test has."""
    return Native(Warehouse(store, embedded=False))


class Native:
    numbers = iter(range(1000))

    def __init__(self, warehouse):
        self.warehouse, self.spark = warehouse, warehouse.spark
        self.name = f"native.t{next(self.numbers)}"

    def frame(self, text, columns="k string, v string"):
        rows = [tuple(None if cell == "-" else cell for cell in row.split(":")) for row in text.split()]
        return self.spark.createDataFrame(rows, columns)

    def copy(self, at, source, **options):
        frame = self.frame(source) if isinstance(source, str) else source
        return self.warehouse.snapshot(frame, into=self.name, key="k", at=day(at), **options)

    def refused(self, at, source, **options):
        before = self.snapshots
        with pytest.raises(BackstoryError) as told:
            self.copy(at, source, **options)
        assert self.snapshots == before
        return told.value.code, told.value.keys

    @property
    def stored(self):
        return existing(self.warehouse.store, TableName(*self.name.split(".")))

    @property
    def snapshots(self):
        return len(list(self.stored.iceberg.snapshots()))

    def rows(self, *columns):
        """The stored rows as the rule has them, recorded times by their number."""
        found = self.spark.table(f"backstory.{self.name}").toArrow().to_pylist()
        times = {None, *(row["recorded_at"] for row in found)}
        times |= {(row["_memory"] or {}).get("ended_at") for row in found}
        numbers = {time: place + 1 for place, time in enumerate(sorted(times - {None}))} | {None: None}
        return {self._row(row, columns, numbers) for row in found}

    @staticmethod
    def _row(row, columns, numbers):
        memory = row["_memory"] or {}
        assert row["is_current"] == (row["valid_to"] is None)
        return (
            row["k"],
            tuple(row[name] for name in columns),
            days(row["valid_from"]),
            days(row["valid_to"]),
            numbers[row["recorded_at"]],
            memory.get("role"),
            numbers[memory.get("ended_at")],
            days(memory.get("end_before")),
            memory.get("kind"),
        )

    def ids(self):
        """The id of the row that each version is."""
        rows = self.spark.sql(
            f"SELECT k, v, valid_from, _row_id FROM backstory.{self.name} WHERE _memory.role IS NULL"
        )
        return {(row.k, row.v, days(row.valid_from.astimezone(UTC))): row._row_id for row in rows.collect()}


def by_rule(table, *columns):
    """The rule's rows in the same words."""
    times = sorted({row.recorded for row in table.rows} | {row.ended_at for row in table.rows} - {None})
    numbers = {time: place + 1 for place, time in enumerate(times)} | {None: None}

    def told(row: Row):
        values = tuple(row.values.get(name) for name in columns)
        head = (row.key, values, row.start, row.end, numbers[row.recorded])
        return (
            *head,
            row.role and Role(row.role).value,
            numbers[row.ended_at],
            row.end_before,
            row.kind and Told(row.kind).value,
        )

    return {told(row) for row in table.rows}


def randomly(random, keys):
    return {f"k{key}": random.choice("abc") for key in range(keys) if random.random() < 0.7}


@pytest.mark.parametrize("seed", [1])
def test_L3_L6_L7_L13_the_plan_gives_the_rules_rows(native, seed):
    """In order, late, and in the place of others; and a version that only ends remains the row that it was."""
    random, table, keys = Random(seed), Table(("v",)), 40
    series = [
        (50, {}),
        (60, {}),
        (60, {"restate": True}),
        (40, {"backfill": True}),
        (70, {}),
        (65, {}),
        (65, {"restate": True}),
    ]
    for commit, (at, options) in enumerate(series):
        rows = randomly(random, keys)
        ids = native.ids() if commit else {}
        taken = take(
            table, Copy(at, {key: {"v": value} for key, value in rows.items()}, ("v",), **options), commit
        )
        source = " ".join(f"{key}:{value}" for key, value in rows.items())
        receipt = native.copy(at, source, max_delete_ratio=1, **options)
        assert dict(receipt.counts) == taken.counts
        table = taken.table
        assert native.rows("v") == by_rule(table, "v")
        now = native.ids()
        assert {place: id_ for place, id_ in now.items() if place in ids} == {
            place: id_ for place, id_ in ids.items() if place in now
        }
    assert native.copy(65, source).snapshot_id is None
    assert native.stored.properties[SETTLED] == json.dumps(
        ["2026-02-20T00:00:00.000000Z", "2026-03-02T00:00:00.000000Z"]
    )
    assert MEMORY_SINCE in native.stored.properties
