"""Rows that the driver writes keep nested values. Iceberg finds the parts of a column by their ids."""

import pyarrow as pa
from committing import commit, make

from backstory.model.change import Change
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.tables import existing

TEXT, LONG = ColumnType(Kind.STRING), ColumnType(Kind.LONG)
PART = ColumnType(Kind.STRUCT, parts=(("a", TEXT), ("b", ColumnType(Kind.LIST, parts=(("element", LONG),)))))
NESTED = {
    "id": LONG,
    "s": PART,
    "l": ColumnType(Kind.LIST, parts=(("element", PART),)),
    "m": ColumnType(Kind.MAP, parts=(("key", TEXT), ("value", PART))),
}
INNER = pa.struct({"a": pa.string(), "b": pa.list_(pa.int64())})
SCHEMA = pa.schema({"id": pa.int64(), "s": INNER, "l": pa.list_(INNER), "m": pa.map_(pa.string(), INNER)})


def test_nested_values_are_read_as_written(store):
    value = {"a": "x", "b": [1, None, 2]}
    rows = [
        {"id": 1, "s": value, "l": [value, None], "m": [("k", value)]},
        {"id": 2, "s": None, "l": [], "m": None},
    ]
    name = TableName("stores", "nested")
    columns = tuple(Column(each, type_) for each, type_ in NESTED.items())
    make(store, Shape(name, columns, ("id",), Layout.FIVETRAN_LIVE))
    commit(store, existing(store, name), Change(added=pa.Table.from_pylist(rows, SCHEMA)))
    stored_rows = store.spark.table(store.sql_name(name)).orderBy("id").toArrow().to_pylist()
    assert stored_rows == rows


def test_a_table_without_rows_becomes_a_frame(store):
    """PySpark rejects a list column without chunks, as from a file without rows."""
    nothing = frame_of(store, pa.Table.from_batches([], SCHEMA))
    assert (nothing.columns, nothing.toArrow().to_pylist()) == (SCHEMA.names, [])


def test_a_slice_of_a_table_becomes_a_frame_of_its_rows(store):
    """A program may have sliced an Arrow table."""
    value = {"a": "x", "b": [1, None]}
    rows = [{"id": each, "s": value, "l": [value, None], "m": [("k", value)]} for each in range(3)]
    rows += [{"id": 3, "s": None, "l": None, "m": None}]
    part = pa.Table.from_pylist(rows, SCHEMA).slice(1)
    assert frame_of(store, part).toArrow().to_pylist() == rows[1:]
