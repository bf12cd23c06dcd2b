"""The columns of a table after a copy with other columns, without Spark."""

import pytest
from pyspark.sql import types as t

from backstory.doors.native.evolution import (
    delivered_columns,
    evolve_shape,
    new_table,
    refuse_lacking_key,
)
from backstory.doors.native.options import SnapshotRequest
from backstory.errors import BackstoryError
from backstory.model.table import TableName
from backstory.model.types import type_named

TABLE = TableName("s", "t")
OWN = ["valid_from", "valid_to", "is_current", "recorded_at", "_memory"]


_STRUCTS = {
    "struct<a>": t.StructType([t.StructField("a", t.IntegerType())]),
    "struct<a,b>": t.StructType([t.StructField(name, t.IntegerType()) for name in "ab"]),
}
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
    "decimal(18,2)": t.DecimalType(18, 2),
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
    "map<void>": t.MapType(t.StringType(), t.NullType()),
    **{
        f"struct<a,{name}>": t.StructType([t.StructField("a", t.IntegerType()), t.StructField(name, type_)])
        for name, type_ in (("v", t.NullType()), ("a", t.IntegerType()))
    },
    "struct<v>": t.StructType([t.StructField("v", t.NullType())]),
    **_STRUCTS,
    **{f"array<{name}>": t.ArrayType(type_) for name, type_ in _STRUCTS.items()},
    **{f"map<{name}>": t.MapType(t.StringType(), type_) for name, type_ in _STRUCTS.items()},
    "struct<s<a>>": t.StructType([t.StructField("s", _STRUCTS["struct<a>"])]),
    "struct<s<a,b>>": t.StructType([t.StructField("s", _STRUCTS["struct<a,b>"])]),
    "struct<>": t.StructType([]),
    "array<struct<>>": t.ArrayType(t.StructType([])),
    "struct<s<>>": t.StructType([t.StructField("s", t.StructType([]))]),
    "map<struct<>>": t.MapType(t.StringType(), t.StructType([])),
    "struct<b,a>": t.StructType([t.StructField(name, t.IntegerType()) for name in "ba"]),
}


def columns(text):
    """The columns of `k int, v string`, without Spark's parser, which needs a session."""
    pairs = (each.split(" ") for each in text.split(", "))
    return delivered_columns(t.StructType([t.StructField(name, TYPES[type_]) for name, type_ in pairs]))


def begun(ddl, key=("k",)):
    return new_table(TABLE, *columns(ddl), SnapshotRequest(into=TABLE, key=key))


def after(before, ddl, key=None, retype=None, valueless=(), **rename):
    request = SnapshotRequest(into=TABLE, key=key, rename=rename, retype=retype or {})
    return evolve_shape(begun(before).shape, *columns(ddl), request, lambda name: name in valueless)


def types(evolved):
    return {each.name: str(each.type) for each in evolved.shape.user_columns}


@pytest.mark.parametrize(
    ("stored", "delivered", "now"),
    [
        ("int", "bigint", "BIGINT"),
        ("bigint", "int", "BIGINT"),
        ("tinyint", "smallint", "INT"),
        ("float", "double", "DOUBLE"),
        ("decimal(10,2)", "decimal(12,2)", "DECIMAL(12,2)"),
        ("decimal(12,2)", "decimal(10,2)", "DECIMAL(12,2)"),
        ("string", "varchar(3)", "STRING"),
        ("array<int>", "array<int>", "ARRAY<INT>"),
        ("date", "void", "DATE"),
        ("array<int>", "array<void>", "ARRAY<INT>"),
        ("struct<a>", "struct<a,b>", "STRUCT<a: INT, b: INT>"),
        ("array<struct<a>>", "array<struct<a,b>>", "ARRAY<STRUCT<a: INT, b: INT>>"),
        ("map<struct<a>>", "map<struct<a,b>>", "MAP<STRING, STRUCT<a: INT, b: INT>>"),
        ("struct<s<a>>", "struct<s<a,b>>", "STRUCT<s: STRUCT<a: INT, b: INT>>"),
    ],
)
def test_a_wider_type_widens_the_column(stored, delivered, now):
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
        ("array<struct<a,b>>", "array<struct<a>>"),
        ("array<int>", "array<struct<a>>"),
        ("struct<a,b>", "struct<a>"),
        ("struct<a,b>", "struct<b,a>"),
    ],
)
def test_any_other_type_is_refused_with_both_types(stored, delivered):
    with pytest.raises(BackstoryError) as error:
        after(f"k int, v {stored}", f"k int, v {delivered}")
    assert (error.value.code, error.value.keys, error.value.exit_code) == ("type-changed", ["v"], 3)
    one, other = (str(columns(f"v {each}")[0][0].type) for each in (stored, delivered))
    assert one in error.value.message
    assert other in error.value.message


def test_a_struct_field_without_values_becomes_text():
    """The field's type is unknown, so it is text, or the stored field's type. No value is left out."""
    first = begun("k int, v struct<a,v>, m map<void>, n struct<v>")
    assert types(first) == {"k": "INT", "v": "STRUCT<a: INT, v: STRING>", "m": "MAP<STRING, STRING>"}
    assert first.left_out == ["n"]
    assert types(after("k int, v struct<a>", "k int, v struct<a,v>"))["v"] == "STRUCT<a: INT, v: STRING>"


def test_repeated_struct_fields_are_refused():
    """No table has two fields of one name in a struct."""
    with pytest.raises(BackstoryError) as stop:
        begun("k int, v struct<a,a>")
    assert (stop.value.code, stop.value.keys) == ("repeated-column", ["v"])


def test_a_column_without_values_is_text_or_left_out():
    """The column gets the type of its first values, because no row has another type."""
    first = begun("k int, v void, w array<void>")
    assert (types(first), first.left_out) == ({"k": "INT", "v": "STRING"}, ["w"])
    assert first.changes == ["new table: k INT, v STRING"]
    now = after("k int, v void", "k int, v int", valueless=["v"])
    assert (types(now), now.changes, now.retyped) == (
        {"k": "INT", "v": "INT"},
        ["column v: type is now INT"],
        {},
    )
    assert now.stored.column("v") is None
    later = after("k int", "k int, n void, w array<void>")
    assert (types(later), later.left_out) == ({"k": "INT", "n": "STRING"}, ["w"])


def test_retype_sets_the_type_of_a_column():
    """The column is named by its old or new name. If it already has the type, nothing changes."""
    double = {"v": type_named("double")}
    for name in "vx":
        evolved = after("k int, v bigint", "k int, x double", v="x", retype={name: double["v"]})
        assert (types(evolved), {name: str(type_) for name, type_ in evolved.retyped.items()}) == (
            {"k": "INT", "x": "DOUBLE"},
            {"x": "BIGINT"},
        )
    again = after("k int, x double", "k int, x double", v="x", retype=double)
    assert (again.changes, again.retyped) == ([], {})
    assert after("k int, v int", "k int, v double", retype=double).changes == ["column v: type is now DOUBLE"]
    assert after("k int, v double", "k int, v double", retype=double).changes == []
    assert after("k int, v float", "k int, v float", retype=double).retyped == {"v": type_named("float")}
    assert types(after("k int, v int", "k int", retype=double))["v"] == "DOUBLE"
    assert types(after("k int", "k int, v void", retype=double))["v"] == "DOUBLE"


@pytest.mark.parametrize(
    ("stored", "delivered", "holds"),
    [
        ("int", "double", "DOUBLE"),
        ("bigint", "double", "DOUBLE"),
        ("int", "decimal(10,2)", "DECIMAL(12,2)"),
        ("decimal(10,2)", "decimal(12,4)", "DECIMAL(12,4)"),
        ("date", "timestamp", "TIMESTAMP"),
        ("int", "string", "STRING"),
        ("string", "struct<a>", None),
        ("array<int>", "array<bigint>", None),
    ],
)
def test_a_refused_type_change_suggests_a_common_type(stored, delivered, holds):
    with pytest.raises(BackstoryError) as error:
        after(f"k int, v {stored}", f"k int, v {delivered}")
    assert error.value.code == "type-changed"
    assert ("`retype=" in error.value.remedy) == (holds is not None)
    if holds:
        assert f"`retype={{'v': '{holds}'}}`" in error.value.remedy


def test_new_columns_are_added_after_existing_columns():
    evolved = after("k int, a int, b int", "new int, b int, k int", a="c")
    assert [each.name for each in evolved.shape.columns] == ["k", "c", "b", "new", *OWN]
    assert (evolved.renamed, evolved.added) == ({"a": "c"}, {"new"})
    assert {each.name for each in evolved.delivered} == {"new", "b", "k"}
    assert after("k int, a int", "q int, a int", k="q").shape.key == ("q",)


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
        ("k int, v int", {"retype": {"w": type_named("int")}}, "bad-option"),
        ("k int, v int", {"retype": {"valid_to": type_named("string")}}, "bad-option"),
        ("k int, v int", {"retype": {"k": type_named("string")}}, "bad-option"),
        ("k int, v double", {"retype": {"v": type_named("decimal(9,2)")}}, "type-changed"),
    ],
)
def test_unsupported_column_changes_are_refused(delivered, options, code):
    with pytest.raises(BackstoryError) as error:
        after("k int, v int", delivered, **options)
    assert error.value.code == code


def test_a_first_copy_needs_a_valid_key():
    for key, code in ((None, "bad-option"), (("v",), "bad-option"), (("q",), "missing-column")):
        with pytest.raises(BackstoryError) as error:
            begun("k int, v array<int>", key)
        assert (error.value.code, error.value.exit_code) == (code, 2)


def test_the_refusal_of_types_names_every_column():
    """The refusal names all columns at once, so that one correction suffices."""
    with pytest.raises(BackstoryError) as error:
        after("k int, v bigint, w date, x string", "k int, v double, w timestamp, x string")
    assert error.value.keys == ["v", "w"]
    assert "`retype={'v': 'DOUBLE', 'w': 'TIMESTAMP'}`" in error.value.remedy
    assert "Column v has type BIGINT" in error.value.message
    assert "column w has type" in error.value.message


@pytest.mark.parametrize("type_", ["struct<>", "array<struct<>>", "struct<s<>>", "map<struct<>>"])
def test_a_struct_without_fields_is_refused(type_):
    with pytest.raises(BackstoryError) as error:
        after("k int", f"k int, v {type_}")
    assert (error.value.code, error.value.keys) == ("unsupported-type", ["v"])


@pytest.mark.parametrize(
    ("stored", "delivered", "way"),
    [
        ("string", "struct<a>", "`type={'v': 'STRING'}`"),
        ("string", "array<struct<a>>", "`type={'v': 'STRING'}`"),
        ("bigint", "double", "`retype={'v': 'STRING'}` for all others"),
        ("double", "bigint", "`retype={'v': 'STRING'}` for all others"),
        ("decimal(18,2)", "double", "`retype={'v': 'STRING'}` for all others"),
    ],
)
def test_incompatible_types_are_refused_with_a_remedy(stored, delivered, way):
    """The remedy names a type that holds numbers beyond a double, and nested values next to text."""
    with pytest.raises(BackstoryError) as error:
        after(f"k int, v {stored}", f"k int, v {delivered}")
    assert way in error.value.remedy


def test_refusals_of_several_types_suggest_types_that_hold_both():
    with pytest.raises(BackstoryError) as error:
        after("k int, v int, w string, x decimal(10,2)", "k int, v decimal(10,2), w int, x double")
    assert "for types that hold both" in error.value.remedy


@pytest.mark.parametrize("own_key", [True, False])
def test_a_delivery_without_columns_is_refused_with_a_remedy(own_key):
    """An empty file of JSON names no columns, to which a remedy could refer."""
    with pytest.raises(BackstoryError) as error:
        refuse_lacking_key(["id"], [], kept=own_key)
    assert error.value.code == "missing-column"
    assert error.value.remedy.endswith("or a CSV file with only a header if there are no rows.")
