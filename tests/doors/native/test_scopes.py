"""Copies of a part of the source read only rows that their scope can touch (V41 to V44)."""

import random
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from depth import deep
from remembering import day, lives

from backstory.errors import Refused, UsageError
from backstory.formats.memory import Memory
from backstory.model.table import table_name
from backstory.warehouse import Warehouse

COLUMNS = pa.schema({"k": pa.string(), "v": pa.string(), "region": pa.string()})
NUMBERS = iter(range(1000))


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


def copy(lake, into, at, text, region=None):
    rows = [dict(zip(COLUMNS.names, each.split(":"), strict=True)) for each in text.split()]
    options = {} if region is None else {"scope": {"region": region}}
    return lake.snapshot(
        pa.Table.from_pylist(rows, COLUMNS),
        into=into,
        key="k",
        at=day(at),
        max_delete_ratio=1,
        allow_empty=True,
        **options,
    )


def versions(lake, into):
    rows = lake.spark.sql(f"SELECT * FROM backstory.{into} WHERE _memory.role IS NULL").toArrow()
    return lives(rows.to_pylist())


def files_of(lake, into):
    name = lake.store.sql_name(table_name(into))
    rows = lake.spark.sql(f"SELECT file_path FROM {name}.data_files").collect()
    return {Path(urlsplit(row.file_path).path) for row in rows}


def test_a_copy_of_a_scope_reads_no_files_of_other_scopes(lake):
    """The other scope's file does not exist, and keys that already exist are not searched in it."""
    into = "scopes.apart"
    copy(lake, into, 10, "a:1:e b:1:e c:1:e", "e")
    mine = files_of(lake, into)
    copy(lake, into, 20, "x:1:u y:1:u", "u")
    (other,) = [each for each in files_of(lake, into) - mine if "=null/" in str(each)]
    away = other.rename(other.with_suffix(".away"))
    receipt = copy(lake, into, 30, "a:1:e b:2:e d:1:e", "e")
    assert receipt.counts == {"new": 1, "changed": 1, "closed": 1, "reopened": 0, "unchanged": 1}
    away.rename(other)
    assert versions(lake, into) == [
        "a: 1[10,)",
        "b: 1[10,30) 2[30,)",
        "c: 1[10,30)",
        "d: 1[30,)",
        "x: 1[20,)",
        "y: 1[20,)",
    ]


@pytest.mark.parametrize("value", [b"e", float("nan")], ids=["bytes", "NaN"])
def test_a_scope_value_without_a_json_form_is_refused(lake, value):
    """A mark could not select its records again, so they would stay open."""
    rows = pa.table({"k": ["a"], "v": [value]})
    with pytest.raises(UsageError) as stop:
        lake.snapshot(rows, into="scopes.formless", key="k", at=day(10), scope={"v": value})
    assert stop.value.code == "bad-option"


SCOPES = {
    "day": (date(2026, 1, 1), date(2026, 1, 2), pa.date32()),
    "instant": (day(1), day(2), pa.timestamp("us", "UTC")),
    "decimal": (Decimal("1.50"), Decimal("-0.07"), pa.decimal128(9, 2)),
    "clock": (datetime(2026, 1, 1, 2), datetime(2026, 1, 1, 3), pa.timestamp("us")),
    "double": (0.1, -2e300, pa.float64()),
    "float": (0.5, 1.25, pa.float32()),
    "boolean": (True, False, pa.bool_()),
    "integer": (-(2**63), 1, pa.int64()),
}


@pytest.mark.parametrize("size", [None, 0][: deep(2, 1)])
@pytest.mark.parametrize("kind", [*SCOPES][: deep(len(SCOPES), 3)])
def test_scopes_at_one_time_may_have_any_type(store, kind, size):
    """V43: The parts of one copy may arrive one by one, and a record moves between them."""
    store = store if size is None else replace(store, memory=Memory(size))
    lake, into = Warehouse(store, embedded=False), f"scopes.{kind}{size}"
    one, other, type_ = SCOPES[kind]

    def take(at, scope, keys):
        rows = pa.table({"k": list(keys), "v": ["x"] * len(keys), "s": pa.array([scope] * len(keys), type_)})
        return lake.snapshot(rows, into=into, key="k", at=day(at), scope={"s": scope}, max_delete_ratio=1)

    for at, mine, others in ((10, "ab", "cd"), (20, "a", "bc")):
        for scope, keys in ((one, mine), (other, others)):
            take(at, scope, keys)
    assert take(20, one, "a").snapshot_id is None
    assert take(10, other, "cd").snapshot_id is None
    with pytest.raises(Refused) as stop:
        take(20, one, "ab")
    assert stop.value.code == "same-instant"
    assert versions(lake, into) == ["a: x[10,)", "b: x[10,20) x[20,)", "c: x[10,)", "d: x[10,20)"]
    assert [each for each in lake.check(into) if each["violations"]] == []


def test_a_scope_value_may_exceed_the_stored_type(lake):
    """The column widens with this copy, and no stored record is in its scope."""
    into = "scopes.wider"

    def take(at, scope, type_):
        rows = pa.table({"k": [str(scope)], "s": pa.array([scope], type_)})
        return lake.snapshot(rows, into=into, key="k", at=day(at), scope={"s": scope})

    take(10, 1, pa.int32())
    assert take(20, 2**40, pa.int64()).counts["new"] == 1
    assert lake.table(into).current().count() == 2


@pytest.mark.parametrize("seed", range(deep(12, 1)))
def test_copies_of_scopes_have_equal_results_on_driver_and_in_tasks(lake, seed):
    """The table is the same on the driver, which selects rows by scope and key, and in Spark's tasks, which
    read all."""
    tasks = Warehouse(replace(lake.store, memory=Memory(0)), embedded=False)
    here, there = (f"scopes.t{next(NUMBERS)}" for _ in range(2))
    chance = random.Random(seed)
    for number in chance.sample(range(10, 20), 4):
        region = chance.choice("eu")
        keys = sorted(chance.sample("abcdef", chance.randrange(5)))
        text = " ".join(f"{key}:{chance.randrange(2)}:{region}" for key in keys)
        receipts = [copy(each, into, number, text, region) for each, into in ((lake, here), (tasks, there))]
        assert receipts[0].counts == receipts[1].counts
    assert versions(lake, here) == versions(lake, there)
    assert [each for each in lake.check(here) if each["violations"]] == []
