"""Frames of callers become rows of supported types, or are refused by column."""

from dataclasses import replace
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from backstory.doors.native.sources import arrow_of_pandas, plain_arrow
from backstory.errors import Refused
from backstory.formats.memory import Memory
from backstory.model.table import table_name
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
def test_columns_are_of_types_that_tables_have(values, type_):
    rows = plain_arrow(pa.table({"v": values}))
    assert rows.schema.field("v").type == type_
    assert rows["v"].to_pylist() == pa.chunked_array([values]).cast(type_).to_pylist()


TEXTS_OF_OTHERS = (
    (pa.array([bytes(16), bytes(range(16)), None], pa.uuid()), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    (pa.array(["", '{"a": 1}', None], pa.json_()), '{"a": 1}'),
)


@pytest.mark.parametrize(("values", "text"), TEXTS_OF_OTHERS)
def test_types_that_databases_have_besides_are_their_text(values, text):
    """DuckDB and pandas write UUIDs and JSON as types of Arrow, also in lists, structs and maps."""
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
    with pytest.raises(Refused) as told:
        plain_arrow(pa.table({"v": values}))
    assert (told.value.code, told.value.keys) == ("unsupported-type", ["v"])


def test_an_instant_that_no_table_holds_is_refused_by_column():
    with pytest.raises(Refused) as told:
        plain_arrow(pa.table({"v": pa.array([2**62], pa.timestamp("s"))}))
    assert (told.value.code, told.value.keys) == ("unreadable-value", ["v"])


BEYOND = {
    "day": pa.array([2_932_897], pa.date32()),
    "instant": pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC")),
    "clock": pa.array([-62_135_596_801], pa.timestamp("s")),
    "list": pa.array([[0, -719_163]], pa.list_(pa.date32())),
    "struct": pa.array([{"a": 2_932_897}], pa.struct({"a": pa.date32()})),
}


@pytest.mark.parametrize("values", BEYOND.values(), ids=BEYOND)
def test_a_time_outside_the_years_of_tables_is_refused_by_column(values):
    """As in files: the years are 1 to 9999."""
    with pytest.raises(Refused) as told:
        plain_arrow(pa.table({"v": values}))
    assert (told.value.code, told.value.keys) == ("unreadable-value", ["v"])


@pytest.mark.parametrize(("type_", "size"), [("DATE", None), ("TIMESTAMP", 0), ("TIMESTAMP_NTZ", None)])
def test_a_frame_of_spark_with_such_a_time_is_refused_in_every_way(store, type_, size):
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


def test_a_frame_whose_column_is_of_two_types_is_refused_without_its_values():
    with pytest.raises(Refused, match="column id") as told:
        arrow_of_pandas(pd.DataFrame({"id": [1, "secret"]}))
    assert "secret" not in told.value.message


def test_a_number_that_no_column_of_a_frame_holds_is_refused():
    with pytest.raises(Refused) as told:
        arrow_of_pandas(pd.DataFrame({"id": [2**70]}))
    assert told.value.code == "unreadable-frame"
