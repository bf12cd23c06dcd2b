"""Copies of a part of the source read only rows that their scope can touch (V41 to V44)."""

import random
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from depth import deep
from remembering import day, lives

from backstory.errors import UsageError
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


def test_a_copy_of_a_scope_reads_no_file_of_another(lake):
    """The other scope's file does not exist, and keys that already exist are not searched in it."""
    into = "scopes.apart"
    copy(lake, into, 10, "a:1:e b:1:e c:1:e", "e")
    mine = files_of(lake, into)
    copy(lake, into, 20, "x:1:u y:1:u", "u")
    (other,) = [each for each in files_of(lake, into) - mine if "_DEFAULT_" in str(each)]
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
def test_a_scope_without_a_form_in_json_is_refused(lake, value):
    """A mark could not select its records again, so they would stay open."""
    rows = pa.table({"k": ["a"], "v": [value]})
    with pytest.raises(UsageError) as stop:
        lake.snapshot(rows, into="scopes.formless", key="k", at=day(10), scope={"v": value})
    assert stop.value.code == "bad-option"


@pytest.mark.parametrize("seed", range(deep(12, 1)))
def test_copies_of_scopes_leave_one_table_wherever_they_are_planned(lake, seed):
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
