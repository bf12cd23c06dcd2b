"""The keys of whole rows equal the rule's, and are the same exactly if the rows are equal."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specification.whole_rows import COPIES, ROW_KEY, are_equal, records, row_key

from backstory.strategies.whole_rows import count_equal_rows, row_keys

TEXTS = st.sampled_from(["", "a", "1", "1:a", "ä", "-"])
FLOATS = st.sampled_from([0.0, -0.0, float("nan"), 1.5, 72.1, -3.0])
NUMBERS = st.integers(-2, 2)
TYPES = {
    "text": (pa.string(), TEXTS),
    "text2": (pa.string(), TEXTS),
    "int": (pa.int32(), NUMBERS),
    "long": (pa.int64(), NUMBERS),
    "double": (pa.float64(), FLOATS),
    "flag": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.sampled_from([b"", b"\xff", b"1"])),
    "price": (pa.decimal128(12, 2), st.sampled_from([Decimal("1.10"), Decimal("-0.01"), Decimal("0.00")])),
    "day": (pa.date32(), st.sampled_from([date(1969, 12, 31), date(2026, 2, 1)])),
    "at": (pa.timestamp("us", "UTC"), st.sampled_from([datetime(1969, 1, 1, 0, 0, 0, 7, UTC)])),
    "list": (pa.list_(pa.string()), st.lists(st.none() | TEXTS, max_size=2)),
    "struct": (
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))]),
        st.fixed_dictionaries({"x": st.none() | NUMBERS, "y": st.none() | st.lists(FLOATS, max_size=1)}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(TEXTS, st.none() | NUMBERS, max_size=2).map(lambda entries: [*entries.items()]),
    ),
}
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in TYPES.items()])
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={name: st.none() | values for name, (_, values) in TYPES.items()}),
    max_size=6,
)


def as_table(rows):
    return pa.Table.from_pylist([{name: row.get(name) for name in SCHEMA.names} for row in rows], SCHEMA)


@given(ROWS)
def test_keys_are_the_rules_in_any_order_of_columns_and_rows(rows):
    """A row's key depends only on its values, not on its position."""
    table = as_table(rows)
    assert row_keys(table).to_pylist() == [row_key(row) for row in rows]
    turned = table.select(SCHEMA.names[::-1]).take(pa.array(range(len(rows)), pa.int64())[::-1])
    assert row_keys(turned).to_pylist() == [row_key(row) for row in rows][::-1]
    assert row_keys(table.slice(1)).to_pylist() == [row_key(row) for row in rows[1:]]


@given(ROWS.filter(lambda rows: len(rows) > 1))
def test_rows_have_the_same_key_exactly_if_they_are_equal(rows):
    """V16 defines equality for NULL, missing columns, NaN, zeros and maps. All other rows have different
    keys."""
    one, other = rows[:2]
    assert (row_key(one) == row_key(other)) is are_equal(one, other)


@given(ROWS)
def test_equal_rows_are_counted(rows):
    """The records of a copy are its distinct rows, with their numbers."""
    table = as_table(rows)
    keyed = table.append_column(COPIES, pa.array([1] * len(rows), pa.int64()))
    keyed = keyed.append_column(ROW_KEY, row_keys(table))
    few, conflicts = count_equal_rows(keyed, [ROW_KEY], COPIES)
    assert len(conflicts) == 0
    counted = dict(zip(few[ROW_KEY].to_pylist(), few[COPIES].to_pylist(), strict=True))
    assert counted == {key: row[COPIES] for key, row in records(rows).items()}


@pytest.mark.parametrize(
    ("narrow", "wide", "values"),
    [
        (pa.int32(), pa.int64(), [1, -7, 2**31 - 1]),
        (pa.decimal128(9, 2), pa.decimal128(38, 2), [Decimal("72.10"), Decimal("0.00")]),
    ],
)
def test_a_wider_type_keeps_the_key(narrow, wide, values):
    keys = [row_keys(pa.table({"v": pa.array(values, type_)})).to_pylist() for type_ in (narrow, wide)]
    assert keys[0] == keys[1]


def test_a_float_has_the_key_of_the_double_with_the_same_text():
    shown = [72.1, 1e10, 1e-7, 16777216.0, 3.4e38, 0.1]
    keys = [
        row_keys(pa.table({"v": pa.array(shown, each)})).to_pylist() for each in (pa.float32(), pa.float64())
    ]
    assert keys[0] == keys[1]


def test_a_key_never_changes():
    """Keys are stored, so another text for a value would close and open every row."""
    table = pa.table(
        {"id": pa.array([7]), "name": ["Ann"], "paid": [1.5], "note": pa.array([None], pa.string())}
    )
    assert row_keys(table).to_pylist() == ["fe5baf5f07342343cde9adc3181255c0"]
