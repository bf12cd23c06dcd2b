"""Parquet: projection by name, and exact coercion (section 1.6, B25)."""

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_files import ddl, declared, optional, refusal, table_of

from backstory.errors import Refused
from backstory.formats.options import ParquetOptions
from backstory.formats.parquet import parquet_rows, plain_parquet

CITIES = {"city": ["vancouver", "seattle", "kyiv"], "population": [675000, 733000, 2884000]}


@pytest.fixture
def file(tmp_path):
    def file(columns, **options):
        path = tmp_path / "a.parquet"
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
        return path

    return file


def only(table):
    return table.column(0).to_pylist()


def test_b25_values_are_coerced_to_the_schema(file):
    """B25: Integers become required texts."""
    schema = ddl("city STRING NOT NULL", "population STRING NOT NULL")
    table = table_of(file(CITIES), schema, kind="Parquet")

    assert ["675000", "733000", "2884000"] == table["population"].to_pylist()
    assert [(pa.string(), False)] * 2 == [(field.type, field.nullable) for field in table.schema]


def test_a_file_without_a_declared_schema_keeps_its_own(file):
    """B26: Without a schema, the columns are the file's, and are optional."""
    table = table_of(file(pa.table(CITIES)), kind="Parquet")

    assert pa.schema([("city", pa.string()), ("population", pa.int64())]) == table.schema
    assert CITIES == table.to_pydict()


def test_columns_are_selected_by_name(file):
    columns = {"a.b": [1], "a": [{"b": 2}], "c": [3]}

    assert {"c": [3], "a.b": [1]} == table_of(
        file(columns), ddl("c BIGINT", "`a.b` BIGINT"), kind="Parquet"
    ).to_pydict()


def test_r67_unusual_column_names_are_kept(file):
    names = ["with space", "a.b", "a[0]", 'quo"te', "UPPER", "upper", "größe", "`tick`", "x,y", "日本"]
    path = file({name: [place] for place, name in enumerate(names)})

    assert names == table_of(path, kind="Parquet").column_names
    table = table_of(path, declared(**dict.fromkeys(reversed(names), "Int32")), kind="Parquet")
    assert dict(zip(names, range(len(names)), strict=True)) == table.to_pylist()[0]


def test_row_groups_become_bounded_batches(file):
    path = file({"a": range(200_000)}, row_group_size=70_000)
    table = table_of(path, kind="Parquet")

    assert list(range(200_000)) == only(table)
    assert max(map(len, table.to_batches())) <= 1 << 16


NS = pa.timestamp("ns")
MICROS = pa.timestamp("us")
PLAIN = [
    (pa.array([1], pa.int8()), pa.int32(), [1]),
    (pa.array([1], pa.uint16()), pa.int32(), [1]),
    (pa.array([(1 << 32) - 1], pa.uint32()), pa.int64(), [(1 << 32) - 1]),
    (pa.array([(1 << 64) - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal((1 << 64) - 1)]),
    (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
    (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
    (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
    (pa.array([date(2020, 1, 1)], pa.date64()), pa.date32(), [date(2020, 1, 1)]),
    (
        pa.array([1], pa.timestamp("s")),
        pa.timestamp("us", "UTC"),
        [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)],
    ),
    (
        pa.array([1], pa.timestamp("ms", "Europe/Berlin")),
        pa.timestamp("us", "UTC"),
        [datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)],
    ),
    (
        pa.array([1999, -1], NS),
        pa.timestamp("us", "UTC"),
        [datetime(1970, 1, 1, 0, 0, 0, 1, UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)],
    ),
    (pa.array([Decimal("1.5")], pa.decimal256(38, 2)), pa.decimal128(38, 2), [Decimal("1.50")]),
    (pa.array([None], pa.null()), pa.null(), [None]),
    (pa.array([[1, None]], pa.large_list(pa.int8())), pa.list_(pa.int32()), [[1, None]]),
    (pa.array([{"a": [1]}]), pa.struct([("a", pa.list_(pa.int64()))]), [{"a": [1]}]),
    (
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.uint8())),
        pa.map_(pa.string(), pa.int32()),
        [[("a", 1)]],
    ),
]


@pytest.mark.parametrize(
    ("values", "type_", "expected"), PLAIN, ids=[str(values.type) for values, *_ in PLAIN]
)
def test_foreign_types_become_native_types(file, values, type_, expected):
    table = table_of(file({"a": values}), kind="Parquet")

    assert type_ == table.schema.field("a").type
    assert expected == only(table)


DECIMAL = {"kind": "Decimal", "precision": 5, "scale": 2}
BYTES = pa.map_(pa.string(), pa.int32())
STRUCT = {"kind": "Struct", "fields": [{"name": "a", "type": optional("Int32")}]}


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        (pa.array([127], pa.int64()), "Int8", 127),
        (pa.array([1], pa.uint64()), "Int32", 1),
        (pa.array([2.0]), "Int64", 2),
        (pa.array([0.5]), "Float32", 0.5),
        (pa.array([1 << 53]), "Float64", float(1 << 53)),
        (pa.array([123]), DECIMAL, Decimal(123)),
        (pa.array([1.25]), DECIMAL, Decimal("1.25")),
        (pa.array([Decimal("1.5000")]), DECIMAL, Decimal("1.50")),
        (pa.array(["1.5"]), DECIMAL, Decimal("1.50")),
        (pa.array(["2020-01-01 10:00:00"]), "Timestamp", datetime(2020, 1, 1, 10, tzinfo=UTC)),
        (pa.array([date(2020, 1, 1)]), "Timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
        (pa.array([datetime(2020, 1, 1)]), "Date", date(2020, 1, 1)),
        (pa.array([True]), "String", "true"),
        (pa.array([1.5]), "String", "1.5"),
        (pa.array([Decimal("1.50")]), "String", "1.50"),
        (pa.array([date(2020, 1, 1)]), "String", "2020-01-01"),
        (pa.array([b"text"]), "String", "text"),
        (pa.array(["text"]), "Binary", b"text"),
        (pa.array([None], pa.null()), "Int32", None),
        (pa.array([[1]]), {"kind": "List", "itemType": "Int32"}, [1]),
        (pa.array([{"a": 1}]), STRUCT, {"a": 1}),
        (pa.array([[], [[]]])[1:], {"kind": "List", "itemType": {"kind": "List", "itemType": "Int32"}}, [[]]),
        (pa.array([{"a": None}], pa.struct([("a", pa.null())])), STRUCT, {"a": None}),
        (pa.array([time(12, 30)], pa.time64("us")), "Time", 45_000_000),
        (pa.array([time(12, 30)], pa.time32("s")), {"kind": "Time", "unit": "Nanosecond"}, 45_000 * 10**9),
        (pa.array(["12:30:00"]), "Time", 45_000_000),
        (pa.array([45_000_000], pa.int32()), "Time", 45_000_000),
        (pa.array([-1_500_000], pa.duration("us")), "Duration", -1500),
        (pa.array([90], pa.duration("s")), {"kind": "Duration", "unit": "Second"}, 90),
        (pa.array([b"abcd"]), {"kind": "Binary", "fixedLength": 4}, b"abcd"),
        (pa.array([[1, 2]]), {"kind": "List", "itemType": "Int32", "fixedLength": 2}, [1, 2]),
        (
            pa.array([[("a", 255)]], BYTES),
            {"kind": "Map", "keyType": "String", "valueType": "UInt8"},
            [("a", 255)],
        ),
    ],
)
def test_exact_coercions_are_accepted(file, values, type_, expected):
    assert [expected] == only(table_of(file({"a": values}), declared(a=optional(type_)), kind="Parquet"))


def test_int96_instants_beyond_the_nanosecond_range_are_exact(file):
    """Nanoseconds end in 2262, so other years would change, including within lists."""
    instants = [datetime(9999, 12, 31), datetime(1, 1, 1), datetime(2020, 1, 1, 1, 2, 3, 4), None]
    columns = {
        "a": pa.array(instants, MICROS),
        "b": pa.array([[each] for each in instants], pa.list_(MICROS)),
    }
    path = file(columns, use_deprecated_int96_timestamps=True)
    expected = [each and each.replace(tzinfo=UTC) for each in instants]

    assert not plain_parquet(path, None)
    for schema in (None, declared(a=optional("Timestamp"))):
        table = table_of(path, schema, kind="Parquet")
        assert expected == only(table)
    assert [[each] for each in expected] == table_of(path, kind="Parquet")["b"].to_pylist()


def test_a_null_struct_needs_no_fields(file):
    """The fields of a NULL struct are not required."""
    struct = {"kind": "Struct", "fields": [{"name": "b", "type": {"kind": "List", "itemType": "Int32"}}]}
    values = [None, {"b": [1]}, {"b": []}]

    assert values == only(table_of(file({"a": values}), declared(a=optional(struct)), kind="Parquet"))


def test_nan_stays_nan(file):
    """NaN is kept, including within required items."""
    (value,) = only(table_of(file({"a": [float("nan")]}), ddl("a FLOAT"), kind="Parquet"))
    assert math.isnan(value)
    items = pa.array([[float("nan")]], pa.list_(pa.field("element", pa.float64(), nullable=False)))
    ((value,),) = only(table_of(file({"a": items}), kind="Parquet"))
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("good", "bad", "type_"),
    [
        (1, 128, "Int8"),
        (1, -1, "UInt8"),
        (1, 1 << 31, "Int32"),
        (1.0, 1.5, "Int32"),
        (1.0, float("nan"), "Int32"),
        (0.5, 0.1, "Float32"),
        (1, (1 << 53) + 1, "Float64"),
        (1, 1000, DECIMAL),
        (1.25, 1.255, DECIMAL),
        (Decimal("1.500"), Decimal("1.555"), DECIMAL),
        ("1", "x", "Int32"),
        (b"a", b"\xff", "String"),
        (datetime(2020, 1, 1), datetime(2020, 1, 1, 1), "Date"),
        ([1], [1 << 31], {"kind": "List", "itemType": "Int32"}),
    ],
)
def test_inexact_coercions_are_refused(file, good, bad, type_):
    path = file({"a": pa.array([good, good, bad])}, row_group_size=1)
    error = refusal(path, declared(a=type_), kind="Parquet")

    assert ("unreadable-value", 3) == (error.code, error.exit_code)
    assert "a.parquet, row 3, column `a`: " in error.message


def test_an_error_for_nanoseconds_contains_the_row(file):
    path = file({"a": pa.array([1001], NS)})

    assert "row 1" in refusal(path, ddl("a DATE"), kind="Parquet").message


FAR_DAY, FAR_INSTANT = pa.array([0, 1 << 30], pa.int32()).cast(pa.date32()), pa.array([0, 1 << 61])
PAIR = {"kind": "List", "itemType": "Int32", "fixedLength": 2}
OLD = pa.array([None, -62_135_596_800_000_001]).cast(MICROS)


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (FAR_DAY, None),
        (FAR_DAY, optional("Date")),
        (FAR_DAY, optional("Timestamp")),
        (FAR_INSTANT.cast(MICROS), None),
        (FAR_INSTANT.cast(pa.timestamp("us", "UTC")), optional("Timestamp")),
        (pa.array([0, 1 << 50]).cast(pa.timestamp("s")), None),
        (OLD, None),
        (pa.array([None, {"b": FAR_DAY[1]}], pa.struct([("b", pa.date32())])), None),
        (pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), FAR_DAY), None),
    ],
)
def test_days_and_instants_outside_the_calendar_are_refused(file, values, type_):
    """Years are 0001 to 9999, whatever the file's type could hold."""
    path = file({"a": values})

    assert not plain_parquet(path, None)
    error = refusal(path, type_ and declared(a=type_), kind="Parquet")
    assert ("unreadable-value", True) == (error.code, "a.parquet, row 2, column `a" in error.message)


def test_times_without_a_zone_outside_the_calendar_are_refused(file):
    """Where they stay without one, as in a copy."""
    path = file({"a": FAR_INSTANT.cast(MICROS)})
    with pytest.raises(Refused, match="row 2, column `a`"):
        list(parquet_rows(path, path.name, ParquetOptions(naive=True), None).batches)


@pytest.mark.parametrize(
    ("codec", "plain"), [("snappy", True), ("zstd", True), ("brotli", False), ("lz4", False)]
)
def test_files_with_codecs_unknown_to_some_engines_are_not_plain(file, codec, plain):
    assert plain_parquet(file({"a": [1, 2]}, compression=codec), None) is plain


@pytest.mark.parametrize(
    ("values", "type_", "message"),
    [
        ([b"abcd", b"abcde"], {"kind": "Binary", "fixedLength": 4}, "`a`: `b'abcde'` is not of type Binary(4)"),
        ([[1, 2], [1, 2, 3]], PAIR, "`a`: `[1, 2, 3]` is not of type List(2)"),
        ([[], [[]]], {"kind": "List", "itemType": PAIR}, "`a.element`: `[]` is not of type List(2)"),
        ([[255], [1, 256]], {"kind": "List", "itemType": "UInt8"}, "`a.element`: `256` is not of type UInt8"),
        ([[1], [None]], {"kind": "List", "itemType": "Int32"}, "`a.element`: `NULL` is not of type Int32"),
        ([["x"], [None]], {"kind": "List", "itemType": "String"}, "`a.element`: `NULL` is not of type String"),
        (
            [{"b": "x"}, {"b": None}],
            {"kind": "Struct", "fields": [{"name": "b", "type": "String"}]},
            "`a.b`: `NULL` is not of type String",
        ),
        (
            [None, {"b": [None, -1]}],
            optional({"kind": "Struct", "fields": [{"name": "b", "type": {"kind": "List", "itemType": optional("UInt16")}}]}),
            "`a.b.element`: `-1` is not of type UInt16",
        ),
        (
            pa.array([[("a", 1)], [("b", 2), ("c", 256)]], BYTES),
            {"kind": "Map", "keyType": "String", "valueType": "UInt8"},
            "`a.value`: `256` is not of type UInt8",
        ),
        (pa.array([0, 86_400]), {"kind": "Time", "unit": "Second"}, "`a`: `86400` is not of type Time(Second)"),
        (pa.array([0, 1500], pa.duration("ms")), {"kind": "Duration", "unit": "Second"}, "not of type Duration(Second)"),
        (pa.array([0, 1], pa.time64("us")), "Time", "not of type Time(Millisecond)"),
    ],
)  # fmt: skip
def test_values_outside_the_declared_type_are_refused(file, values, type_, message):
    """Lengths, ranges and NULL are checked, including in lists, structs and maps."""
    error = refusal(file({"a": values}), declared(a=type_), kind="Parquet")

    assert "unreadable-value" == error.code
    assert "a.parquet, row 2, column " in error.message
    assert message in error.message


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (pa.array([1]), "Timestamp"),
        (pa.array([1]), "Date"),
        (pa.array([1]), "Bool"),
        (pa.array([True]), "Int32"),
        (pa.array([datetime(2020, 1, 1)]), "Int64"),
        (pa.array([datetime(2020, 1, 1)]), "String"),
        (pa.array([time(1)]), "Int64"),
        (pa.array([time(1)]), "Duration"),
        (pa.array([1], pa.duration("s")), "Time"),
        (pa.array([1], pa.duration("s")), "Int64"),
        (pa.array([[time(1)]]), {"kind": "List", "itemType": "Time"}),
        (pa.array([1]), "Binary"),
        (pa.array([1]), {"kind": "List", "itemType": "Int32"}),
        (pa.array([{"a": 1, "b": 2}]), STRUCT),
        (pa.array([{"b": 2}]), STRUCT),
        (pa.array([["1"]]), {"kind": "List", "itemType": "Int32"}),
    ],
)
def test_incompatible_types_are_refused_before_values(file, values, type_):
    error = refusal(file({"a": values}), declared(a=type_), kind="Parquet")

    assert "incompatible-type" == error.code
    assert f"column `a` is of type {str(values.type)[:4]}" in error.message


@pytest.mark.parametrize(
    "values", [pa.array([time(1)]), pa.array([Decimal(1)], pa.decimal256(50, 0)), pa.array([[time(1)]])]
)
def test_an_unsupported_type_is_refused_only_if_its_column_is_read(file, values):
    path = file({"a": values, "b": [1]})

    assert ("unsupported-type", ["a"]) == (
        refusal(path, kind="Parquet").code,
        refusal(path, kind="Parquet").keys,
    )
    assert [1] == only(table_of(path, ddl("b INT"), kind="Parquet"))


def test_a_variant_is_refused(tmp_path):
    """To Arrow it is a struct of encoded bytes. Columns that are not read may have this type."""
    path = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        connection.sql(f"COPY (SELECT 1 AS b, {{'a': 1}}::VARIANT AS v) TO '{path}' (FORMAT parquet)")
    error = refusal(path, kind="Parquet")

    assert ("unsupported-type", ["v"]) == (error.code, error.keys)
    assert [1] == only(table_of(path, ddl("b INT"), kind="Parquet"))


@pytest.mark.parametrize(
    ("values", "type_name"), [([time(1)], "Time"), (pa.array([1], pa.duration("s")), "Duration")]
)
def test_the_remedy_for_a_time_column_contains_its_type(file, values, type_name):
    assert f"in `read` as {type_name}" in refusal(file({"a": values}), kind="Parquet").remedy


def test_nulls_in_a_required_column_are_refused(file):
    error = refusal(file({"a": [1, None, None]}), ddl("a INT NOT NULL"), kind="Parquet")

    assert "a.parquet, row 2: Column `a` contains 2 null values while none were expected" in error.message


@pytest.mark.parametrize("column", ["City STRING", "x STRING NOT NULL"])
def test_a_missing_column_is_refused(file, column):
    error = refusal(file(CITIES), ddl(column), kind="Parquet")

    assert "missing-column" == error.code
    assert "its columns are `city`, `population`" in error.message


def test_unknown_columns_are_refused_with_the_option(file):
    error = refusal(file(CITIES), ddl("city STRING"), kind="Parquet", unknownFields="error")

    assert ("unknown-fields", ["population"]) == (error.code, error.keys)


def test_a_repeated_column_name_is_refused(file):
    path = file(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))

    assert "repeated-column" == refusal(path, kind="Parquet").code
    assert not plain_parquet(path, None)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:0], lambda whole: whole[:4], lambda whole: whole[:-10]]
)
def test_a_file_in_another_format_is_refused(file, damage):
    path = file(CITIES)
    path.write_bytes(damage(path.read_bytes()))

    assert "a.parquet: it is not Parquet" in refusal(path, kind="Parquet").message
    assert not plain_parquet(path, None)


def test_broken_pages_are_refused(file):
    path = file({"a": range(10_000)}, use_dictionary=False, write_page_checksum=False)
    whole = bytearray(path.read_bytes())
    whole[4:2000] = b"\xff" * 1996
    path.write_bytes(whole)

    assert "it is not complete Parquet" in refusal(path, kind="Parquet").message


BYTE_LIST = {"kind": "List", "itemType": optional("UInt8")}
INSTANTS = pa.array([datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("columns", "schema", "plain"),
    [
        (CITIES, None, True),
        (CITIES, ddl("city STRING", "population BIGINT"), True),
        (CITIES, ddl("population BIGINT", "city STRING"), False),
        (CITIES, ddl("city STRING"), False),
        (CITIES, ddl("city STRING", "population INT"), False),
        (CITIES, ddl("city STRING NOT NULL", "population BIGINT"), False),
        ({"a": INSTANTS}, None, True),
        ({"a": INSTANTS}, ddl("a TIMESTAMP"), True),
        ({"a": pa.array([datetime(2020, 1, 1)])}, None, False),
        ({"a": pa.array([1], NS)}, None, False),
        ({"a": pa.array([1], pa.int8())}, None, False),
        ({"a": pa.array([1], pa.uint32())}, None, False),
        ({"a": pa.array([time(1)])}, None, False),
        ({"a": pa.array([1], pa.int32())}, declared(a=optional("Int32")), True),
        ({"a": pa.array([1], pa.int32())}, declared(a=optional("UInt8")), False),
        ({"a": pa.array([None], pa.null())}, None, False),
        ({"a": [[{"b": 1}]]}, None, True),
        ({"a": pa.array([[{"b": 1}]], pa.list_(pa.struct([("b", NS)])))}, None, False),
        ({"a": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}, None, True),
        ({"a": pa.array([[1]], pa.list_(pa.int32()))}, declared(a=optional(BYTE_LIST)), False),
        ({"a": pa.array([b"ab"])}, declared(a=optional({"kind": "Binary", "fixedLength": 2})), False),
        ({"a": pa.array([1])}, declared(a=optional("Duration")), True),
        ({"a": pa.array([1])}, declared(a=optional("Time")), False),
        ({"a": pa.array([date.min, date.max])}, None, True),
        ({"a": pa.array([None], pa.date32())}, None, True),
        ({"a": [[{"b": date.max}], None, []]}, None, True),
    ],
)
def test_only_plain_files_skip_the_check_of_values(file, columns, schema, plain):
    assert plain is plain_parquet(file(columns), schema)


def test_days_without_statistics_are_checked(file):
    """Without statistics, their years are unknown."""
    assert not plain_parquet(file({"a": [date(2020, 1, 1)]}, write_statistics=False), None)
    assert plain_parquet(file({"a": [1]}, write_statistics=False), None)
