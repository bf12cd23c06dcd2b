"""Rows that the driver writes are in the partitions that Spark would choose."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from committing import commit, make

from backstory.model.change import Change
from backstory.model.layout import ENDED, STATE, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.data_files import NULL_PARTITION
from backstory.stores.iceberg.store import existing

TABLE = TableName("parts", "t_hist")
TYPES = {"k": "STRING", ENDED: "UTC_DATETIME", STATE: "STRING"}
SHAPE = Shape(
    TABLE, tuple(Column(name, ColumnType.parse(type_)) for name, type_ in TYPES.items()), ("k",), Layout.HIST
)
ROWS = [
    {"k": "open", ENDED: None, STATE: "new"},
    {"k": "old", ENDED: datetime(1969, 12, 31, 23, 59, tzinfo=UTC), STATE: "changed"},
    {"k": "later", ENDED: datetime(2025, 1, 1, tzinfo=UTC), STATE: "changed"},
    {"k": "gone", ENDED: datetime(2025, 12, 31, 23, 59, tzinfo=UTC), STATE: "deleted"},
    {"k": "nothing", ENDED: None, STATE: None},
]


@pytest.fixture
def table(store):
    drop(store, TABLE)
    make(store, SHAPE)
    yield existing(store, TABLE)
    drop(store, TABLE)


def rows(*more):
    types = [("k", pa.string()), (ENDED, pa.timestamp("us", "UTC")), (STATE, pa.string())]
    return pa.Table.from_pylist([*ROWS, *more], pa.schema(types))


def test_the_driver_writes_the_same_partitions_as_spark(table, store):
    """The same rows, written by the driver and by Spark, are in the same partitions, and are found there."""
    commit(store, table, Change(added=rows()))
    name = store.sql_name(TABLE)
    files = f"SELECT partition.*, sum(record_count) FROM {store.sql_name(TABLE, 'files')} GROUP BY ALL ORDER BY ALL"
    by_driver = store.spark.sql(files).collect()
    store.spark.sql(f"INSERT OVERWRITE {name} SELECT * FROM {name}")
    assert store.spark.sql(files).collect() == by_driver
    assert len(by_driver) == 5
    matches = store.spark.sql(
        f"SELECT k FROM {name} WHERE {ENDED} < TIMESTAMP'1970-01-01 00:00:00Z'"
    ).collect()
    assert [row.k for row in matches] == ["old"]


@pytest.mark.parametrize("word", ["a/b=c %", NULL_PARTITION])
def test_a_label_unsuitable_as_a_folder_name_is_stored(table, store, word):
    """A stored label may be any text, even the word for NULL in paths."""
    odd = {"k": "odd", ENDED: None, STATE: word}
    commit(store, table, Change(added=rows(odd)))
    matches = store.spark.table(store.sql_name(TABLE)).where(f"{STATE} = '{word}'").collect()
    assert [row.k for row in matches] == ["odd"]
