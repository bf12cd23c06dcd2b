"""Files of the legacy calendar are read if both calendars agree, otherwise refused (B.2)."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backstory.errors import Refused
from backstory.formats.batch_file import BatchFile, Encoding, Format
from backstory.formats.delivered import read_parquet
from backstory.formats.options import ParquetOptions
from backstory.formats.parquet import parquet_rows, plain_parquet
from backstory.model.types import ColumnType, Kind

SPARK_2 = {"org.apache.spark.version": "2.4.8"}
LEGACY = {"org.apache.spark.version": "4.1.0", "org.apache.spark.legacyDateTime": ""}
LEGACY_UTC = LEGACY | {"org.apache.spark.timeZone": "UTC"}
INT96 = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyINT96": ""}
INT96_SPARK_30 = {"org.apache.spark.version": "3.0.3"}
HIVE = {"writer.date.proleptic": "false"}
HIVE_ZONES = {"writer.zone.conversion.legacy": "true"}
NEW = {"org.apache.spark.version": "3.5.0"}
NEW_HIVE = {"writer.date.proleptic": "true", "writer.zone.conversion.legacy": "false"}
OLD_DAY, NEW_DAY = date(1582, 10, 4), date(1582, 10, 15)
OLD, NEWER = datetime(1850, 6, 15, 12, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)


def written(folder, footer, values, *, int96=False):
    """A file with one column `v`, and its writer's footer."""
    table = pa.table({"v": values}).replace_schema_metadata(footer)
    pq.write_table(table, folder / "f.parquet", use_deprecated_int96_timestamps=int96)
    return folder / "f.parquet"


def read(path):
    return [row for batch in parquet_rows(path, "f", ParquetOptions(), None).batches for row in batch["v"]]


def instants(*values):
    return pa.array(values, pa.timestamp("us", "UTC"))


@pytest.mark.parametrize("wrap", ["plain", "list", "struct", "map"])
@pytest.mark.parametrize(
    ("footer", "values", "int96", "refused"),
    [
        (SPARK_2, pa.array([None, OLD_DAY]), False, True),
        (SPARK_2, pa.array([None, NEW_DAY]), False, False),
        (SPARK_2, instants(None, OLD), False, True),
        (SPARK_2, instants(None, NEWER), False, False),
        (SPARK_2, instants(OLD), True, True),
        (LEGACY, pa.array([OLD_DAY]), False, True),
        (LEGACY, instants(OLD), False, True),
        (LEGACY, instants(OLD).cast(pa.timestamp("ms", "UTC")), False, True),
        (LEGACY, instants(OLD).cast(pa.timestamp("us")), False, False),  # no zone, so no other calendar
        (LEGACY_UTC, instants(OLD), False, False),  # then only the zones differ
        (LEGACY_UTC, instants(datetime(1500, 1, 1, tzinfo=UTC)), False, True),
        (INT96, instants(OLD), True, True),
        (INT96, pa.array([OLD_DAY]), False, False),
        (INT96_SPARK_30, instants(OLD), True, True),
        (INT96_SPARK_30, instants(OLD), False, False),
        (HIVE, pa.array([OLD_DAY]), False, True),
        (HIVE_ZONES, instants(OLD), True, True),
        (NEW, pa.array([OLD_DAY]), False, False),
        (NEW, instants(OLD), True, False),
        (NEW_HIVE, instants(OLD), True, False),
        ({}, pa.array([OLD_DAY]), False, False),
        (SPARK_2, pa.array([1, 2]), False, False),
    ],
)
def test_legacy_calendar_values_that_differ_are_refused(tmp_path, footer, values, int96, refused, wrap):
    """The footer identifies the writer. Days, instants and 96-bit instants are checked at any depth."""
    count = len(values)
    wraps = {
        "plain": lambda: values,
        "list": lambda: pa.ListArray.from_arrays([*range(count + 1)], values),
        "struct": lambda: pa.StructArray.from_arrays([values], ["f"]),
        "map": lambda: pa.MapArray.from_arrays(
            [*range(count + 1)], pa.array([str(each) for each in range(count)]), values
        ),
    }
    path = written(tmp_path, footer, wraps[wrap](), int96=int96)
    if not refused:
        assert len(read(path)) == count
        return
    assert not plain_parquet(path, None)
    with pytest.raises(Refused) as stop:
        read(path)
    assert (stop.value.code, stop.value.keys) == ("legacy-calendar", ["v"])


@pytest.mark.parametrize(("kind", "value"), [(Kind.NAIVE_DATE, OLD_DAY), (Kind.UTC_DATETIME, OLD)])
def test_batch_files_with_legacy_calendar_values_are_refused_too(tmp_path, kind, value):
    """The reader of batch files also checks the footer."""
    path = written(tmp_path, SPARK_2, pa.array([value]))
    encoding = Encoding(format=Format.PARQUET)
    columns = {"v": ColumnType(kind)}
    with pytest.raises(Refused) as stop:
        list(read_parquet(BatchFile(path), encoding, columns, frozenset(columns)))
    assert stop.value.code == "legacy-calendar"


@pytest.mark.parametrize("naive", [True, False])
def test_int96_instants_always_have_one_type(tmp_path, naive):
    """They are in UTC, including within structs and lists, whatever happens to times without a zone."""
    inner = pa.StructArray.from_arrays([instants(NEWER), pa.array([[NEWER]])], ["a", "b"])
    path = written(tmp_path, NEW, instants(NEWER), int96=True)
    (utc,) = parquet_rows(path, "f", ParquetOptions(naive=naive), None).schema.types
    assert utc == pa.timestamp("us", "UTC")
    path = written(tmp_path, NEW, inner, int96=True)
    rows = parquet_rows(path, "f", ParquetOptions(naive=naive), None)
    (nested,) = rows.schema.types
    assert {nested.field("a").type, nested.field("b").type.value_type} == {pa.timestamp("us", "UTC")}
    assert next(rows.batches)["v"].to_pylist() == [{"a": NEWER, "b": [NEWER]}]
