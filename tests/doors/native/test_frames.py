"""Frames of callers become rows of types that tables have, or are refused by column; no Spark is asked."""

from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from backstory.doors.native.sources import arrow_of_pandas, plain_arrow
from backstory.errors import Refused


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (pa.array([255], pa.uint8()), pa.int32()),
        (pa.array([2**32 - 1], pa.uint32()), pa.int64()),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
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


def test_a_frame_whose_column_is_of_two_types_is_refused_without_its_values():
    with pytest.raises(Refused, match="column id") as told:
        arrow_of_pandas(pd.DataFrame({"id": [1, "secret"]}))
    assert "secret" not in told.value.message
