"""Columns of older files become the table's columns by field ids, with the same values as in Spark."""

from decimal import Decimal

import pyarrow as pa
import pytest

from backstory.stores.metadata.parquet_files import arrow_type_of, project_field
from backstory.stores.metadata.table_metadata import Unreadable

STRUCT = {
    "type": "struct",
    "fields": [
        {"id": 3, "name": "new", "type": "long"},
        {"id": 2, "name": "y", "type": "string"},
        {"id": 4, "name": "later", "type": "date"},
    ],
}
LIST = {"type": "list", "element-id": 5, "element": "int"}


def of(type_, number=1, **more):
    return {"id": number, "name": "v", "type": type_, **more}


def field(name, type_, number):
    return pa.field(name, type_, metadata={"PARQUET:field_id": str(number)})


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        (pa.array([1, None], pa.int32()), "long", [1, None]),
        (pa.array([1.5], pa.float32()), "double", [1.5]),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "decimal(12, 2)", [Decimal("1.25")]),
        (pa.array(["a"], pa.large_string()), "string", ["a"]),
        (None, "timestamptz", [None, None]),
    ],
)
def test_a_column_with_a_widened_type_is_read_with_its_new_type(values, type_, expected):
    read = project_field(of(type_), values, 2)
    assert (read.type, read.to_pylist()) == (arrow_type_of(type_), expected)


@pytest.mark.parametrize(
    ("values", "table_field"),
    [
        (pa.array([1], pa.int64()), of("int")),
        (pa.array([1], pa.timestamp("ns", "UTC")), of("timestamptz")),
        (pa.array([1], pa.timestamp("us")), of("timestamptz")),
        (pa.array([1], pa.date32()), of("timestamp")),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), of("decimal(9, 3)")),
        (pa.array([b"0" * 16], pa.binary(16)), of("uuid")),
        (None, of("int", **{"initial-default": 7})),
        (None, of("int", required=True)),
        (pa.array([[1]], pa.list_(field("element", pa.int32(), 6))), of(LIST)),
    ],
)
def test_inexact_conversions_are_left_to_spark(values, table_field):
    with pytest.raises(Unreadable):
        project_field(table_field, values, 1)


def test_fields_of_a_struct_are_matched_by_id():
    stored = pa.struct([field("x", pa.int32(), 1), field("y", pa.string(), 2), field("old", pa.int32(), 3)])
    values = pa.array([{"x": 1, "y": "a", "old": 7}, None, {"x": 2, "y": None, "old": None}], stored)
    assert project_field(of(STRUCT), values, 3).to_pylist() == [
        {"new": 7, "y": "a", "later": None},
        None,
        {"new": None, "y": None, "later": None},
    ]
    same = pa.array([[1], None, []], pa.list_(field("element", pa.int32(), 5)))
    assert project_field(of(LIST), same, 3).to_pylist() == [[1], None, []]


def test_decimals_have_the_scale_of_the_table():
    assert arrow_type_of("decimal(38, 38)") == pa.decimal128(38, 38)
