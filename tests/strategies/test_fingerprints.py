"""Two rows have the same fingerprint exactly if all their values are equal (E9, V16), on the driver and in
Spark."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.formats.rows import arrow_type
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.frames import frame_of
from backstory.strategies.fingerprints import ROWS_AT_ONCE, Fingerprints
from backstory.strategies.frames import fingerprint
from backstory.strategies.values import alike

TEXT = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "ab",
    "b",
    "a\0",
    "é",
    "e\u0301",
    "x" * 64,
    "x" * 65,
    "x" * 64 + "y",
    "NULL",
    "0",
]
TIMES = [
    datetime(1, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(2024, 1, 1),
]
LISTS = [[], [None], [None, None], [0], [0, None], [None, 0], [1, 2], [2, 1], [1, 2, 2]]
MAPS = [[], [("", None)], [("", 0)], [("a", 1), ("b", 2)], [("a", 2), ("b", 1)], [("a", 1)]]
STRUCTS = [
    {"x": None, "y": None},
    {"x": 1, "y": None},
    {"x": None, "y": "1"},
    {"x": 1, "y": ""},
    {"x": 0, "y": ""},
]
LONG, STRING = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
# Distinct values of each kind. NULL is one more.
VALUES = {
    Kind.BOOLEAN: [False, True],
    Kind.SHORT: [0, 1, -1, 2**15 - 1, -(2**15)],
    Kind.INT: [0, 1, -1, 2**31 - 1, -(2**31)],
    Kind.LONG: [0, 1, -1, 2**63 - 1, -(2**63), 2**32],
    Kind.DECIMAL: [Decimal(0), Decimal("0.01"), Decimal("-0.01"), Decimal(2**64) / 4, Decimal(10**20)],
    Kind.FLOAT: [0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 2.0**-149],
    Kind.DOUBLE: [0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 0.1, 0.1 + 2**-56],
    Kind.NAIVE_DATE: [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    Kind.NAIVE_DATETIME: TIMES,
    Kind.UTC_DATETIME: [each.replace(tzinfo=UTC) for each in TIMES],
    Kind.BINARY: [b"", b"\0", b"\0\0", b"a", b"\xff"],
    Kind.XML: TEXT,
    Kind.STRING: TEXT,
    Kind.JSON: TEXT,
    Kind.NAIVE_TIME: TEXT,
    Kind.LIST: LISTS,
    Kind.MAP: MAPS,
    Kind.STRUCT: STRUCTS,
}
PARTS = {
    Kind.LIST: (("element", LONG),),
    Kind.MAP: (("key", STRING), ("value", LONG)),
    Kind.STRUCT: (("x", LONG), ("y", STRING)),
}


def type_of(kind):
    precision, scale = (38, 2) if kind is Kind.DECIMAL else (0, 0)
    return ColumnType(kind, precision, scale, parts=PARTS.get(kind, ()))


def column(type_, values):
    return pa.array(values, arrow_type(type_))


def nested(type_, values):
    """The same values within a list, a struct of a list, and a map."""
    within = [
        (ColumnType(Kind.LIST, parts=(("element", type_),)), [[each] for each in values]),
        (ColumnType(Kind.MAP, parts=(("key", STRING), ("value", type_))), [[("k", each)] for each in values]),
    ]
    listed, lists = within[0]
    within.append((ColumnType(Kind.STRUCT, parts=(("p", listed),)), [{"p": each} for each in lists]))
    return within


def here(rows):
    """The driver's fingerprint of each row."""
    _, [(one, other)] = Fingerprints().of(rows, [], {0: rows.column_names})
    return list(zip(one.tolist(), other.tolist(), strict=True))


def by_spark(store, rows):
    """Spark's fingerprint of each row."""
    from pyspark.sql.functions import col

    frame = frame_of(store, rows)
    values = [(col(each.name), each.dataType) for each in frame.schema]
    return [tuple(row) for row in frame.coalesce(1).select(*fingerprint(values, 0)).collect()]


def test_every_kind_has_test_values():
    assert {*VALUES} == {*Kind}


@pytest.mark.parametrize("kind", VALUES)
def test_different_values_have_different_fingerprints(store, kind):
    """This includes values in lists, maps and structs, and NULL."""
    values = [*VALUES[kind], None]
    for type_, each in [(type_of(kind), values), *nested(type_of(kind), values)]:
        rows = pa.table({"x": column(type_, [*each, None] if each is not values else each)})
        for prints in (here(rows), by_spark(store, rows)):
            assert len({*prints}) == len(rows)


def test_equal_values_have_equal_fingerprints_on_the_driver():
    """In Spark, a difference would only make a plan read more rows."""
    nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    pairs = [
        (pa.array([0.0, math.nan]), pa.array([-0.0, nan])),
        (pa.array([[0.0], None]), pa.array([[-0.0], None])),
        (
            column(type_of(Kind.MAP), [[("a", 1), ("b", 2)]]),
            column(type_of(Kind.MAP), [[("b", 2), ("a", 1)]]),
        ),
    ]
    for one, other in pairs:
        assert here(pa.table({"x": one})) == here(pa.table({"x": other}))


def test_a_null_in_another_column_changes_the_fingerprint(store):
    """A hash that ignores NULL would make these rows equal."""
    texts = pa.table({"x": ["a", None, "", "a"], "y": [None, "a", "a", ""]})
    numbers = pa.table({"x": pa.array([1, None, 0, 1]), "y": pa.array([None, 1, 1, 0])})
    for rows in (texts, numbers):
        for prints in (here(rows), by_spark(store, rows)):
            assert len({*prints}) == len(rows)


def test_neighbouring_texts_are_hashed_separately(store):
    rows = pa.table({"x": ["ab", "a", ""], "y": ["c", "bc", "abc"]})
    for prints in (here(rows), by_spark(store, rows)):
        assert len({*prints}) == len(rows)


def test_fingerprints_distinguish_nulls_in_130_columns():
    """Each column has its own bit for NULL."""
    names = [f"c{number}" for number in range(130)]
    rows = pa.table(
        {
            name: pa.array([None if row == place else 0 for row in range(130)])
            for place, name in enumerate(names)
        }
    )
    assert len({*here(rows)}) == 130


VALUE = st.one_of(st.none(), st.integers(-2, 2))
ROW = st.fixed_dictionaries(
    {
        "t": st.one_of(st.none(), st.text("ab\0", max_size=3)),
        "d": st.one_of(st.none(), st.decimals(-2, 2, places=2)),
        "f": st.one_of(st.none(), st.sampled_from([0.0, -0.0, math.nan, 1.5])),
        "l": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.lists(VALUE, max_size=2)), max_size=3)),
        "s": st.one_of(
            st.none(),
            st.fixed_dictionaries({"x": VALUE, "y": st.one_of(st.none(), st.lists(VALUE, max_size=2))}),
        ),
        "m": st.one_of(
            st.none(), st.dictionaries(st.sampled_from("ab"), VALUE).map(lambda each: [*each.items()])
        ),
    }
)
SCHEMA = pa.schema(
    [
        ("t", pa.string()),
        ("d", pa.decimal128(10, 2)),
        ("f", pa.float64()),
        ("l", pa.list_(pa.list_(pa.int64()))),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int64()))])),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)


@given(st.lists(st.tuples(ROW, ROW), min_size=1, max_size=8), st.integers(0, 3))
def test_rows_have_equal_fingerprints_exactly_if_all_values_are_equal(pairs, first):
    """The place in memory and the other rows do not matter."""
    sides = [pa.Table.from_pylist([pair[side] for pair in pairs], SCHEMA).slice(first) for side in (0, 1)]
    same = np.ones(len(sides[0]), bool)
    for name in SCHEMA.names:
        same &= alike(*(side[name] for side in sides))
    one, other = map(here, sides)
    assert [left == right for left, right in zip(one, other, strict=True)] == same.tolist()


def test_a_fingerprint_does_not_depend_on_the_number_of_rows():
    count = 2 * ROWS_AT_ONCE + 3
    rows = pa.table({"t": [f"text {each}" for each in range(count)], "n": range(count)})
    prints = here(rows)
    assert len({*prints}) == count
    assert prints[-1:] == here(rows.slice(count - 1))
    assert prints[ROWS_AT_ONCE : ROWS_AT_ONCE + 2] == here(rows.slice(ROWS_AT_ONCE, 2))
    assert here(rows.slice(0, 0)) == []
