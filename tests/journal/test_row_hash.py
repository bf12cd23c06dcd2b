"""A hash of rows, independent of their files (section 6.5)."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce

import pytest
from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import lit
from row_texts import in_python

from backstory.journal import row_hash
from backstory.journal.arrow_hash import Slice, hash_of_table
from backstory.journal.row_hash import hash_of, slice_hashes

NOON = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
OLD = datetime(1582, 10, 4, 23, 59, 59, 999_999, tzinfo=UTC)
SCHEMA = """
    offset BIGINT, `a.b` STRING, `b``c d` STRING, whole INT, real DOUBLE, small FLOAT, exact DECIMAL(38,10), yes BOOLEAN,
    day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, raw BINARY, list ARRAY<INT>, deep ARRAY<ARRAY<STRING>>,
    point STRUCT<`y.1`: DOUBLE, x: STRUCT<z: STRING>>, pairs MAP<STRING, ARRAY<INT>>, points ARRAY<STRUCT<n: INT>>
"""
FULL = (
    *(0, "é", "'\"\n", -7, -0.0, 0.1, Decimal("-1E-10"), True, date(1, 1, 1), NOON, OLD.replace(tzinfo=None)),
    *(
        bytearray(b"\x00\xff"),
        [1, None, 3],
        [["a"], [], None],
        (1.5, ("z",)),
        {"b": [1], "a": None},
        [(1,), None],
    ),
)
EMPTY = (1, *[None] * 16)
EDGES = (
    *(2, "", "~", 2**31 - 1, math.nan, math.inf, Decimal(10) ** 27, False, date(9999, 12, 31), OLD, None),
    *(bytearray(), [], [[]], (None, None), {}, []),
)
ROWS = [FULL, EMPTY, EDGES]


def logical_hash(frame, offset):
    return slice_hashes(frame, offset, []).get(None, Slice()).hash


@pytest.fixture(scope="module")
def frame(spark):
    return spark.createDataFrame(ROWS, SCHEMA)


@pytest.fixture(scope="module")
def hashed(frame):
    return logical_hash(frame, "offset")


def test_the_spark_hash_equals_the_rule(frame, hashed):
    """This covers every type, names with dots, backticks and spaces, NULL, NaN and extremes."""
    rows = [
        (*row[:5], row[5] and float.fromhex("0x1.99999ap-4") if row is FULL else row[5], *row[6:])
        for row in ROWS
    ]

    assert in_python(rows, frame.schema.jsonValue()) == hashed


def test_driver_and_spark_hashes_are_equal(frame):
    """This covers rows without nested values."""
    flat = frame.select(*(f"`{name.replace('`', '``')}`" for name in frame.columns[:12]))
    assert hash_of_table(flat.toArrow(), "offset") == logical_hash(flat, "offset")


def test_rows_are_hashed_during_the_write(frame, hashed):
    """The written rows are unchanged, and the hash equals a reader's."""
    seen = Observation()

    way = row_hash.observe_hash(frame, "offset", seen)

    assert frame.columns == way.columns
    assert [row["whole"] for row in frame.collect()] == [row["whole"] for row in way.collect()]
    assert hashed == hash_of(seen.get)


def test_the_hash_is_independent_of_session_and_order(spark, frame, hashed):
    """Partitions, the order of rows and columns, time zone and ANSI mode do not matter."""
    settings = {"spark.sql.session.timeZone": "Asia/Kathmandu", "spark.sql.ansi.enabled": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        names = [f"`{name.replace('`', '``')}`" for name in reversed(frame.columns)]
        assert logical_hash(frame.select(names).orderBy("whole").repartition(3), "offset") == hashed
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_null_columns_are_omitted_from_the_hash(frame, hashed):
    """A later column, or field of a struct, does not change the hash."""
    wider = frame.selectExpr("CAST(NULL AS STRING) AS `new`", "*")
    wider = wider.withColumn("point", wider["point"].withField("new", wider["new"]))

    assert logical_hash(wider, "offset") == hashed


def test_wider_number_types_keep_the_hash(frame, hashed):
    """Iceberg widens columns without changing rows."""
    wider = {"whole": "bigint", "small": "double"}

    assert (
        logical_hash(frame.withColumns({n: frame[n].cast(t) for n, t in wider.items()}), "offset") == hashed
    )


def test_an_empty_frame_has_no_hash(frame):
    assert logical_hash(frame.where("FALSE"), "offset") is None


def test_slices_have_the_hashes_of_their_rows(spark):
    """This covers shared buckets, several buckets, a slice without rows, and rows without a slice."""
    rows = spark.range(2, 30_002, numPartitions=3).selectExpr("id AS offset", "CAST(id * 7 AS STRING) AS v")
    slices = [(0, 2, 4), (1, 5, 25_000), (2, 25_001, 29_998), (3, 40_000, 40_001)]

    hashes = slice_hashes(rows, "offset", slices)

    for number, first, last in slices[:3]:
        size = last - first + 1
        expected = logical_hash(rows.where(f"offset BETWEEN {first} AND {last}"), "offset")
        assert hashes[number] == Slice(size, expected, first, last)
    assert hashes[3] == Slice()
    assert hashes[None][0] == 3
    assert hashes[None][2:] == (29_999, 30_001)


def test_row_hashes_differ_by_value_type_and_name(spark):
    """This includes rows whose texts are equal without lengths and kinds. -0.0 equals 0.0, and NaN equals
    NaN."""
    different = [
        "'ab' AS a, 'c' AS b",
        "'a' AS a, 'bc' AS b",
        "'ab1:bs1:c' AS a, CAST(NULL AS STRING) AS b",
        "'1' AS a, 'c' AS b",
        "1 AS a, 'c' AS b",
        "1D AS a, 'c' AS b",
        "1.0BD AS a, 'c' AS b",
        "1.00BD AS a, 'c' AS b",
        "array('ab') AS a, 'c' AS b",
        "array('ab', NULL) AS a, 'c' AS b",
        "array('ab', '~') AS a, 'c' AS b",
        "array(array('ab'), array()) AS a, 'c' AS b",
        "array(array('ab', '')) AS a, 'c' AS b",
        "array(map('ab', 'c'), map()) AS a, 'c' AS b",
        "named_struct('x', 'ab') AS a, 'c' AS b",
        "named_struct('y', 'ab') AS a, 'c' AS b",
        "named_struct('y', CAST(NULL AS STRING)) AS a, 'c' AS b",
        "CAST(NULL AS STRING) AS a, 'c' AS b",
        "map('ab', 'c') AS a, 'c' AS b",
        "DATE'1970-01-02' AS a, 'c' AS b",
        "TIMESTAMP'1970-01-02' AS a, 'c' AS b",
        "TIMESTAMP_NTZ'1970-01-02' AS a, 'c' AS b",
        "X'01' AS a, 'c' AS b",
        "true AS a, 'c' AS b",
        "0D AS a, float('NaN') AS b",
    ]
    same = ["-0D AS a, double('NaN') AS b", "float('-0') AS a, sqrt(-1D) AS b"]

    rows = [
        frame.select(lit(place).alias("place"), row_hash._digest(frame, "offset", {}).alias("digest"))
        for place, row in enumerate(different + same)
        for frame in [spark.sql(f"SELECT 0L AS offset, {row}")]
    ]
    texts = reduce(DataFrame.unionAll, rows).orderBy("place").collect()
    digests = [row["digest"] for row in texts]

    assert len(set(digests)) == len(different)
    assert digests[-1] == digests[-2] == digests[-3]
