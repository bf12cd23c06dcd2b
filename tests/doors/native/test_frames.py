"""Frames of callers become rows of supported types, or are refused by column."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstory.doors.native.sources import _read_parquet, arrow_of_pandas, plain_arrow, rows_of_frame
from backstory.errors import Refused, UsageError
from backstory.formats.batch_file import BatchFile, Encoding, stamp_of
from backstory.formats.delivered import read_parquet
from backstory.formats.memory import Memory
from backstory.formats.options import ParquetOptions
from backstory.formats.reading import rows_of
from backstory.model.table import table_name
from backstory.model.types import ColumnType, Kind
from backstory.spark.frame_files import frame_files
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import load
from backstory.warehouse import Warehouse


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (pa.array([255], pa.uint8()), pa.int32()),
        (pa.array([2**32 - 1], pa.uint32()), pa.int64()),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array([Decimal(1500)], pa.decimal128(5, -2)), pa.decimal128(7, 0)),
        (pa.array([0], pa.date64()), pa.date32()),
        (pa.array(["x"], pa.string_view()), pa.string()),
        (pa.array([b"x"], pa.binary_view()), pa.binary()),
        (pa.array(["x"]).dictionary_encode(), pa.string()),
        (pa.array([[1]], pa.large_list(pa.uint16())), pa.list_(pa.int32())),
        (pa.array([1000], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("s", "Asia/Tokyo")), pa.timestamp("us", "UTC")),
    ],
)
def test_arrow_types_become_types_of_tables(values, type_):
    rows = plain_arrow(pa.table({"v": values}))
    assert rows.schema.field("v").type == type_
    assert rows["v"].to_pylist() == pa.chunked_array([values]).cast(type_).to_pylist()


TEXTS_OF_OTHERS = (
    (pa.array([bytes(16), bytes(range(16)), None], pa.uuid()), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    (pa.array(["", '{"a": 1}', None], pa.json_()), '{"a": 1}'),
)


@pytest.mark.parametrize(("values", "text"), TEXTS_OF_OTHERS)
def test_database_types_without_a_table_type_become_text(values, text):
    """DuckDB and pandas write UUIDs and JSON as types of Arrow, including in lists, structs and maps."""
    values = values[1:]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), values)
    keyed = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), values[:1], values[:1])
    rows = plain_arrow(pa.table({"v": values, "l": lists, "s": pa.StructArray.from_arrays([values], ["x"])}))
    assert rows["v"].to_pylist() == [text, None]
    assert rows["l"].to_pylist() == [[text], [None]]
    assert rows["s"].to_pylist() == [{"x": text}, {"x": None}]
    assert plain_arrow(pa.table({"v": keyed}))["v"].to_pylist() == [[(text, text)]]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1], pa.time64("us")),
        pa.array([1], pa.duration("s")),
        pa.array([Decimal(1)], pa.decimal256(50, 2)),
    ],
)
def test_a_type_that_no_table_has_is_refused_by_column(values):
    with pytest.raises(Refused) as refusal:
        plain_arrow(pa.table({"v": values}))
    assert (refusal.value.code, refusal.value.keys) == ("unsupported-type", ["v"])


def test_an_instant_that_no_table_holds_is_refused_by_column():
    with pytest.raises(Refused) as refusal:
        plain_arrow(pa.table({"v": pa.array([2**62], pa.timestamp("s"))}))
    assert (refusal.value.code, refusal.value.keys) == ("unreadable-value", ["v"])


TEXT = ColumnType(Kind.STRING)
BAD_TEXT = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
UNFIT = {
    "day": pa.array([2_932_897], pa.date32()),
    "instant": pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC")),
    "clock": pa.array([-62_135_596_801], pa.timestamp("s")),
    "list": pa.array([[0, -719_163]], pa.list_(pa.date32())),
    "struct": pa.array([{"a": 2_932_897}], pa.struct({"a": pa.date32()})),
    "text": BAD_TEXT,
    "coded text": BAD_TEXT.dictionary_encode(),
    "text in a struct": pa.StructArray.from_arrays([BAD_TEXT], ["a"]),
    "text in a map": pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), pa.array([1, 2]), BAD_TEXT),
}


@pytest.mark.parametrize("values", UNFIT.values(), ids=UNFIT)
def test_a_value_that_no_table_holds_is_refused_by_column(values):
    """As in files: the years are 1 to 9999, and text is UTF-8."""
    with pytest.raises(Refused) as refusal:
        plain_arrow(pa.table({"v": values}))
    assert (refusal.value.code, refusal.value.keys) == ("unreadable-value", ["v"])


MAPS = pa.map_(pa.string(), pa.int16())
REPEATED = pa.array([[("k", 1)], None, [("a", 1), ("k", 1), ("k", 2)]], MAPS)
DISTINCT = pa.array([[("k", 1)], None, [], [("a", 1), ("k", 1)], [("k", 1), ("a", 1)]], MAPS)


def test_a_map_that_contains_a_key_twice_is_refused():
    """Maps are compared without their order, so such a map has no defined value."""
    assert plain_arrow(pa.table({"v": DISTINCT}))["v"].to_pylist() == DISTINCT.to_pylist()
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), REPEATED)
    for values in (REPEATED, pa.StructArray.from_arrays([REPEATED], ["a"]), lists):
        with pytest.raises(Refused, match="contains a key more than once") as refusal:
            plain_arrow(pa.table({"v": values}))
        assert (refusal.value.code, refusal.value.keys) == ("unreadable-value", ["v"])


def test_text_of_a_file_that_is_not_utf8_is_refused(tmp_path):
    """Arrow checks no text of Parquet. Fivetran, models, datasets and copies read such a file alike."""
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"v": BAD_TEXT}), path)
    reads = (
        lambda: list(read_parquet(BatchFile(path), Encoding(), {"v": TEXT}, frozenset({"v"}))),
        lambda: list(rows_of(path, "bad.parquet", ParquetOptions(), pa.schema({"v": pa.string()})).batches),
        lambda: list(_read_parquet(path, (), stamp_of(path))(["v"])),
    )
    for read in reads:
        with pytest.raises(Refused) as stop:
            read()
        assert stop.value.code.startswith(("unreadable-", "malformed")), stop.value.code


NAIVE, AWARE, DAY = datetime(2024, 1, 1, 5), datetime(2024, 1, 1, 5, tzinfo=UTC), date(2024, 1, 1)
MIXTURES = {
    "zone": [NAIVE, AWARE],
    "no zone": [AWARE, NAIVE],
    "day": [DAY, NAIVE],
    "pandas": [pd.Timestamp(AWARE), pd.Timestamp(NAIVE)],
    "list": [[NAIVE], [], [AWARE]],
    "struct": [{"a": NAIVE, "b": AWARE}, {"a": AWARE, "b": None}],
    "text and bytes": ["a", b"b"],
    "text and bytes in a list": [["a", b"b"]],
    "text and bytes in structs": [{"a": "a"}, {"a": bytearray(b"b")}],
}


@pytest.mark.parametrize("values", MIXTURES.values(), ids=MIXTURES)
def test_a_pandas_column_with_mixed_kinds_of_values_is_refused(values):
    """Arrow would take times without a zone for UTC, drop the clock after a date, and make bytes of texts."""
    with pytest.raises(Refused) as stop:
        arrow_of_pandas(pd.DataFrame({"v": pd.Series(values, dtype=object)}))
    assert (stop.value.code, stop.value.keys) == ("unreadable-frame", ["v"])


@pytest.mark.parametrize("values", [[{1, 2}], [[{"a"}]], [{"a": set()}]])
def test_a_pandas_column_with_sets_is_refused(values):
    """Equal sets may have different orders, so that an unchanged record would get a new version."""
    with pytest.raises(Refused, match="sort each set into a list") as stop:
        arrow_of_pandas(pd.DataFrame({"v": pd.Series(values, dtype=object)}))
    assert (stop.value.code, stop.value.keys) == ("unreadable-frame", ["v"])


def test_a_series_is_refused_as_a_source(python):
    """A pandas object without columns is refused like any other object."""
    with pytest.raises(UsageError, match=r"A pandas.Series is not a source of rows"):
        python.snapshot(pd.Series([1]), into="frames.series", key="id")


def test_a_pandas_column_with_one_kind_of_times_is_accepted():
    whole = {"a": [NAIVE, pd.NaT], "b": [AWARE, None], "c": [{"x": NAIVE, "y": AWARE}, {"x": NAIVE}]}
    rows = arrow_of_pandas(
        pd.DataFrame({name: pd.Series(each, dtype=object) for name, each in whole.items()})
    )
    assert [str(type_) for type_ in rows.schema.types[:2]] == ["timestamp[us]", "timestamp[us, tz=UTC]"]


@pytest.mark.parametrize(("type_", "size"), [("DATE", None), ("TIMESTAMP", 0), ("TIMESTAMP_NTZ", None)])
def test_a_spark_frame_with_a_time_after_9999_is_refused_in_every_way(store, type_, size):
    """Neither a copy nor a feed stores it, on the driver or in tasks. The bounds themselves are stored."""
    store = store if size is None else replace(store, memory=Memory(size))
    warehouse, into = Warehouse(store, embedded=False), f"frames.{type_.lower()}{size}"

    def rows(value, at="TIMESTAMP'2026-01-01T00:00:00Z'"):
        return store.spark.sql(f"SELECT 'a' AS k, CAST({value} AS {type_}) AS `v.1`, {at} AS at")

    feed = {"into": into, "key": "k", "sequence_by": "at"}
    beyond = "timestamp_seconds(253402300800)"
    for deliver in (warehouse.snapshot, warehouse.apply):
        options = feed if deliver == warehouse.apply else {"into": into, "key": "k"}
        with pytest.raises(Refused) as stop:
            deliver(rows(beyond), **options)
        assert (stop.value.code, stop.value.keys) == ("unreadable-value", ["v.1"])
    assert load(store, table_name(into)) is None
    with pytest.raises(Refused) as stop:
        warehouse.apply(rows("'2026-01-01'"), **{**feed, "sequence_by": "at + INTERVAL 8000 YEARS"})
    assert stop.value.code == "unreadable-instant"
    assert warehouse.apply(rows("'9999-12-31 23:59:59.999999Z'"), **feed).counts["began"] == 1


FAR, BAD = "DATE'9999-12-31' + 1", "CAST(X'61ff' AS STRING)"
WITHIN = (
    "{0}",
    "array({1}, {0})",
    "named_struct('a.b', {1}, 'c', {0})",
    "map(1, {0})",
    "map({0}, 1)",
    "array(named_struct('x', array({0})))",
)


def test_values_within_frames_of_spark_are_checked(store):
    """Times and text are checked at any depth. Fit values and NULL pass, and files stay known as files."""

    def read(*values):
        columns = ", ".join(f"{shape.format(*values)} AS `v.{n}`" for n, shape in enumerate(WITHIN))
        return store.spark.sql(f"SELECT {columns}")

    for value, fit, type_ in ((FAR, "DATE'9999-12-31'", "DATE"), (BAD, "'\u00e4'", "STRING")):
        unfit = read(value, f"CAST(NULL AS {type_})")
        for name in unfit.columns:
            with pytest.raises(Refused) as stop, translate_faults("t"):
                rows_of_frame(unfit.select(f"`{name}`")).frame().collect()
            assert (stop.value.code, stop.value.keys) == ("unreadable-value", [name])
        source = rows_of_frame(read(fit, f"CAST(NULL AS {type_})"))
        assert source.frame().schema.simpleString() == source.fields.simpleString()
        assert len(source.frame().collect()) == 1
    nothing = store.spark.sql("SELECT CAST(NULL AS MAP<STRING, ARRAY<DATE>>) v")
    assert rows_of_frame(nothing).frame().collect() == [(None,)]


LISTS = {
    "a": ("array(map('x', 1))", "ARRAY<MAP<STRING, INT>>"),
    "b": ("array(named_struct('p', array(1)))", "ARRAY<STRUCT<p: ARRAY<INT>>>"),
    "c": ("map('x', array(1))", "MAP<STRING, ARRAY<INT>>"),
    "d": ("named_struct('q', array(array(1)))", "STRUCT<q: ARRAY<ARRAY<INT>>>"),
}


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("way", ["snapshot", "apply"])
def test_a_spark_frame_whose_lists_are_all_empty_is_stored(store, way, memory):
    """Empty and NULL lists that contain lists or maps are stored, on the driver and in tasks."""
    store = store if memory is None else replace(store, memory=Memory(memory))
    warehouse, into = Warehouse(store, embedded=False), f"frames.lists_{way}{memory}"
    options = {"snapshot": {"deletes": "ignore"}, "apply": {"sequence_by": "at"}}[way]

    def deliver(key, *texts):
        columns = ", ".join(f"CAST({text} AS {type_}) AS {name}" for name, text, type_ in texts)
        rows = f"SELECT '{key}' AS k, TIMESTAMP'2026-01-01T00:00:00Z' AS at, {columns}"
        getattr(warehouse, way)(store.spark.sql(rows), into=into, key="k", **options)

    deliver("none", *((name, "NULL", type_) for name, (_, type_) in LISTS.items()))
    empty = {"a": "array()", "b": "array()", "c": "map()", "d": "named_struct('q', array())"}
    deliver("empty", *((name, empty[name], type_) for name, (_, type_) in LISTS.items()))
    rows = warehouse.table(into).current().where("k = 'empty'").select(*LISTS).collect()
    assert [list(row) for row in rows] == [[[], [], {}, ([],)]]


def test_a_checked_frame_keeps_its_files(store, tmp_path):
    pq.write_table(pa.table({"k": ["a"], "at": [date(2024, 1, 1)]}), tmp_path / "f.parquet")
    frame = store.spark.read.parquet(str(tmp_path))
    assert frame_files(rows_of_frame(frame).frame()).stamps == frame_files(frame).stamps


UNREADABLE = {
    "two types": [1, "secret"],
    "a number too large": pd.Series([2**70, 1], dtype=object),
    "a surrogate": ["secret\ud800", "b"],
    "sparse": pd.arrays.SparseArray([0, 1]),
}


@pytest.mark.parametrize("values", UNREADABLE.values(), ids=UNREADABLE)
def test_a_column_that_arrow_cannot_convert_is_refused_without_its_values(values):
    with pytest.raises(Refused, match="column v: ") as stop:
        arrow_of_pandas(pd.DataFrame({"id": [1, 2], "v": values}))
    assert (stop.value.code, stop.value.keys) == ("unreadable-frame", ["v"])
    assert "secret" not in stop.value.message


def test_repeated_columns_of_a_pandas_frame_are_refused():
    with pytest.raises(Refused) as stop:
        arrow_of_pandas(pd.DataFrame([[1, 2, 3]], columns=["id", "v", "v"]))
    assert (stop.value.code, stop.value.keys) == ("repeated-column", ["v"])
