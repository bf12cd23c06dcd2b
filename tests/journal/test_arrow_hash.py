"""The driver hashes rows like the rule in plain Python (section 6.5)."""

from datetime import UTC, datetime
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from depth import DEPTH, EXAMPLES
from hypothesis import given, settings
from hypothesis import strategies as some
from pyspark.sql.pandas.types import from_arrow_schema
from row_texts import in_python

from backstory.journal import arrow_hash
from backstory.journal.arrow_hash import hash_of_table

EXACT = Context(prec=38)
INSTANTS = some.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
VALUES = {
    "é": (pa.string(), some.text(max_size=9)),
    "a b": (pa.int32(), some.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), some.integers(-(2**63), 2**63 - 1)),
    "real": (pa.float64(), some.floats()),
    "small": (pa.float32(), some.floats(width=32)),
    "exact": (
        pa.decimal128(38, 10),
        some.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-10, EXACT)),
    ),
    "yes": (pa.bool_(), some.booleans()),
    "day": (pa.date32(), some.dates()),
    "at": (pa.timestamp("us", "UTC"), INSTANTS.map(lambda time: time.replace(tzinfo=UTC))),
    "wall": (pa.timestamp("us"), INSTANTS),
    "raw": (pa.binary(), some.binary(max_size=9)),
}
SCHEMA = pa.schema([("offset", pa.int64()), *((name, type_) for name, (type_, _) in VALUES.items())])
ROW = some.tuples(some.integers(0, 2**40), *(some.none() | some_ for _, some_ in VALUES.values()))


@pytest.mark.parametrize(
    ("times", "piece", "largest"),
    [(1, 2, 1 << 26), (3, 1 << 16, 1 << 26), (1, 1 << 16, 1)],
    ids=["some pieces", "repeated", "large rows"],
)
@given(rows=some.lists(ROW, min_size=1, max_size=6))
@settings(max_examples=EXAMPLES[DEPTH], deadline=None)
def test_the_driver_hash_equals_the_rule(times, piece, largest, rows):
    """This covers every type, NULL, NaN and extremes. Repeated values are hashed once."""
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows * times], SCHEMA)
    struct = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True).jsonValue()
    by_rule = in_python(_stored(rows * times), struct)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_hash, "PIECE", piece)
        patch.setattr(arrow_hash, "LARGEST", largest)
        assert hash_of_table(table, "offset") == by_rule


PARTS = pa.schema(
    [
        ("offset", pa.int64()),
        ("parts", pa.struct([("b", pa.float64()), ("a é", pa.list_(pa.int32()))])),
        ("list", pa.list_(pa.struct([("x", pa.string())]))),
        ("map", pa.map_(pa.string(), pa.list_(pa.string()))),
    ]
)
ROWS_WITH_PARTS = [
    (0, {"b": -0.0, "a é": [1, None]}, [{"x": "é"}, None, {"x": None}], {"b": ["x"], "a": None}),
    (1, None, None, None),
    (2, {"b": None, "a é": None}, [], {}),
    (3, {"b": float("nan"), "a é": []}, [{"x": ""}], {"": [None, ""], "a:": []}),
]


@pytest.mark.parametrize("first", range(len(ROWS_WITH_PARTS)))
def test_nested_values_are_hashed_like_the_rule(first):
    """Structs are hashed by field names, lists in order, maps in a fixed order, at any memory offset."""
    struct = from_arrow_schema(PARTS, prefer_timestamp_ntz=True).jsonValue()
    in_arrow = [(*row[:3], row[3] and [*row[3].items()]) for row in ROWS_WITH_PARTS]
    table = pa.Table.from_pylist([dict(zip(PARTS.names, row, strict=True)) for row in in_arrow], PARTS)
    by_place = [
        (offset, fields(parts), items and [fields(each) for each in items], entries)
        for offset, parts, items, entries in ROWS_WITH_PARTS
    ]
    assert hash_of_table(table.slice(first), "offset") == in_python(by_place[first:], struct)


def fields(struct):
    return struct and tuple(struct.values())


def test_an_empty_table_has_no_hash():
    assert hash_of_table(SCHEMA.empty_table(), "offset") is None


def _stored(rows):
    """The rows as stored, with floats of 32 bits."""
    place = SCHEMA.names.index("small")
    return [
        (*row[:place], row[place] if row[place] is None else float(np.float32(row[place])), *row[place + 1 :])
        for row in rows
    ]
