"""What becomes of a table's columns when a copy has others; Spark does not run here."""

import pytest
from pyspark.sql import types as t

from backstory.doors.native.evolution import delivered_columns, evolved, made
from backstory.errors import BackstoryError
from backstory.model.table import TableName

TABLE = TableName("s", "t")
OWN = ["valid_from", "valid_to", "is_current", "recorded_at", "_memory"]


TYPES = {
    "tinyint": t.ByteType(),
    "smallint": t.ShortType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "decimal(10,2)": t.DecimalType(10, 2),
    "decimal(12,2)": t.DecimalType(12, 2),
    "decimal(12,4)": t.DecimalType(12, 4),
    "string": t.StringType(),
    "varchar(3)": t.VarcharType(3),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "void": t.NullType(),
    "interval": t.DayTimeIntervalType(),
    "array<int>": t.ArrayType(t.IntegerType()),
    "array<bigint>": t.ArrayType(t.LongType()),
    "array<void>": t.ArrayType(t.NullType()),
    "struct<a>": t.StructType([t.StructField("a", t.IntegerType())]),
    "struct<a,b>": t.StructType([t.StructField(name, t.IntegerType()) for name in "ab"]),
}


def columns(text):
    """The columns of `k int, v string`; the parser of Spark needs a session."""
    told = (each.split(" ") for each in text.split(", "))
    return delivered_columns(t.StructType([t.StructField(name, TYPES[type_]) for name, type_ in told]))


def after(before, ddl, key=None, **rename):
    shape = made(TABLE, columns(before)[0], ("k",)).shape
    return evolved(shape, *columns(ddl), key, rename)


def types(found):
    return {each.name: str(each.type) for each in found.shape.user_columns}


@pytest.mark.parametrize(
    ("stored", "delivered", "now"),
    [
        ("int", "bigint", "LONG"),
        ("bigint", "int", "LONG"),
        ("tinyint", "smallint", "INT"),
        ("float", "double", "DOUBLE"),
        ("decimal(10,2)", "decimal(12,2)", "DECIMAL(12,2)"),
        ("decimal(12,2)", "decimal(10,2)", "DECIMAL(12,2)"),
        ("string", "varchar(3)", "STRING"),
        ("array<int>", "array<int>", "LIST(INT)"),
        ("date", "void", "NAIVE_DATE"),
        ("array<int>", "array<void>", "LIST(INT)"),
    ],
)
def test_a_type_that_widens_is_widened(stored, delivered, now):
    assert types(after(f"k int, v {stored}", f"k int, v {delivered}")) == {"k": "INT", "v": now}


@pytest.mark.parametrize(
    ("stored", "delivered"),
    [
        ("bigint", "double"),
        ("string", "int"),
        ("int", "string"),
        ("decimal(10,2)", "decimal(12,4)"),
        ("date", "timestamp"),
        ("timestamp", "timestamp_ntz"),
        ("array<int>", "array<bigint>"),
        ("struct<a>", "struct<a,b>"),
    ],
)
def test_any_other_type_is_refused_with_both_named(stored, delivered):
    with pytest.raises(BackstoryError) as told:
        after(f"k int, v {stored}", f"k int, v {delivered}")
    assert (told.value.code, told.value.keys, told.value.exit_code) == ("type-changed", ["v"], 3)
    one, other = (str(columns(f"v {each}")[0][0].type) for each in (stored, delivered))
    assert one in told.value.message
    assert other in told.value.message


def test_a_column_without_a_type_comes_with_its_first_value():
    found, empty = columns("k int, v void, w array<void>")
    assert ([each.name for each in found], empty) == (["k"], {"v", "w"})
    assert types(after("k int, v void", "k int, v int")) == {"k": "INT", "v": "INT"}


def test_columns_keep_their_place_and_new_ones_stand_behind():
    found = after("k int, a int, b int", "new int, b int, k int", a="c")
    assert [each.name for each in found.shape.columns] == ["k", "c", "b", "new", *OWN]
    assert (found.renamed, found.added) == ({"a": "c"}, {"new"})
    assert {each.name for each in found.delivered} == {"new", "b", "k"}
    assert after("k int, a int", "k int, q int", k="q").shape.key == ("q",)


@pytest.mark.parametrize(
    ("delivered", "options", "code"),
    [
        ("v int", {}, "missing-column"),
        ("k int, v int", {"key": ("v",)}, "key-changed"),
        ("k int, _row_id int", {}, "reserved-column"),
        ("k int, v interval", {}, "unsupported-type"),
        ("k int, v int, v int", {}, "repeated-column"),
        ("k int, v int", {"none": "w"}, "bad-option"),
        ("k int, v int", {"v": "k"}, "bad-option"),
        ("k int, v int", {"v": "valid_to"}, "reserved-column"),
    ],
)
def test_what_a_table_cannot_take(delivered, options, code):
    with pytest.raises(BackstoryError) as told:
        after("k int, v int", delivered, **options)
    assert told.value.code == code


def test_a_first_copy_says_its_key():
    found = columns("k int, v array<int>")[0]
    for key, code in ((None, "bad-option"), (("v",), "bad-option"), (("q",), "missing-column")):
        with pytest.raises(BackstoryError) as told:
            made(TABLE, found, key)
        assert (told.value.code, told.value.exit_code) == (code, 2)
