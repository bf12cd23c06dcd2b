"""Columns of older files as those of the table, by the ids of fields; never a value that Spark would read otherwise."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from backstory.stores.metadata.columns import arrow_of, groups_within, positions_in, projected, read_fields
from backstory.stores.metadata.hidden import Unreadable

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
    ("values", "type_", "found"),
    [
        (pa.array([1, None], pa.int32()), "long", [1, None]),
        (pa.array([1.5], pa.float32()), "double", [1.5]),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "decimal(12, 2)", [Decimal("1.25")]),
        (pa.array(["a"], pa.large_string()), "string", ["a"]),
        (None, "timestamptz", [None, None]),
    ],
)
def test_a_type_that_became_wider_is_read_as_it_is_now(values, type_, found):
    read = projected(of(type_), values, 2)
    assert (read.type, read.to_pylist()) == (arrow_of(type_), found)


@pytest.mark.parametrize(
    ("values", "told"),
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
def test_what_would_not_be_exact_is_left_to_spark(values, told):
    with pytest.raises(Unreadable):
        projected(told, values, 1)


def test_fields_of_a_struct_go_by_their_ids():
    stored = pa.struct([field("x", pa.int32(), 1), field("y", pa.string(), 2), field("old", pa.int32(), 3)])
    values = pa.array([{"x": 1, "y": "a", "old": 7}, None, {"x": 2, "y": None, "old": None}], stored)
    assert projected(of(STRUCT), values, 3).to_pylist() == [
        {"new": 7, "y": "a", "later": None},
        None,
        {"new": None, "y": None, "later": None},
    ]
    same = pa.array([[1], None, []], pa.list_(field("element", pa.int32(), 5)))
    assert projected(of(LIST), same, 3).to_pylist() == [[1], None, []]


EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
SPANNED = {
    "long": (pa.int64(), int),
    "int": (pa.int32(), int),
    "string": (pa.string(), lambda n: f"é{n:03}"),
    "date": (pa.date32(), lambda n: date(2024, 1, 1) + timedelta(days=n)),
    "timestamptz": (pa.timestamp("us", "UTC"), lambda n: EPOCH + timedelta(seconds=n)),
    "decimal(9, 2)": (pa.decimal128(9, 2), lambda n: Decimal(n) / 4),
}


@pytest.mark.parametrize("type_", SPANNED)
def test_row_groups_that_have_nothing_within_a_span_are_not_read(tmp_path, type_):
    """All rows of the others are, with their positions; NULLs are in no span."""
    kind, of_number = SPANNED[type_]
    chance, path = random.Random(type_), tmp_path / "f.parquet"
    numbers = [chance.choice([None, *range(place, place + 9)]) for place in range(60)]
    rows = pa.table(
        [pa.array([None if n is None else of_number(n) for n in numbers], kind)],
        pa.schema([field("v", kind, 1)]),
    )
    pq.write_table(rows, path, row_group_size=7)
    left_out = 0
    with pq.ParquetFile(path) as file:
        for first in range(0, 70, 5):
            least, greatest = (pa.scalar(of_number(n), kind) for n in (first, first + 3))
            groups = groups_within(file, [(of(type_), least.as_py(), greatest.as_py())])
            positions = positions_in(file.metadata, groups)
            read = read_fields(file, [of(type_)], (), lambda _: None, groups)
            assert read["v"].to_pylist() == rows["v"].take(positions).to_pylist()
            inside = pc.and_(pc.greater_equal(rows["v"], least), pc.less_equal(rows["v"], greatest))
            wanted = pc.fill_null(inside, False).to_pylist()
            assert {place for place, is_in in enumerate(wanted) if is_in} <= set(positions.tolist())
            left_out += file.metadata.num_row_groups - len(groups)
    assert left_out > 60
