"""`SetDataSchema` sets the column types of a source without a schema (decision O25)."""

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, counts
from depth import deep

APPEND = "{kind: append}"
CSV = "{kind: csv, header: true}"
FIELDS = {
    "city": "String",
    "population": "Int64",
    "founded": "{kind: option, inner: Date}",
    "seen": "{kind: option, inner: Timestamp}",
    "area": "{kind: option, inner: {kind: Decimal, precision: 9, scale: 2}}",
    "zone": "{kind: option, inner: UInt8}",
}
HEADER = "city,population,founded,seen,area,zone"
KYIV = ("Kyiv", 2952301, date(482, 1, 1), datetime(2024, 1, 2, 3, tzinfo=UTC), Decimal("847.66"), 2)
LVIV = ("Lviv", 717273, None, None, None, None)


def schema(**fields: str) -> str:
    columns = ", ".join(f"{{name: {name}, type: {type_}}}" for name, type_ in fields.items())
    return f"{{kind: setDataSchema, schema: {{fields: [{columns}]}}}}"


@pytest.fixture
def dataset(store, tmp_path):
    return partial(Dataset, store, tmp_path, APPEND, namespace="odf_typed", after=(schema(**FIELDS),))


@pytest.mark.parametrize("read", [CSV, "{kind: csv, header: true, inferSchema: true}"])
def test_texts_of_a_csv_become_the_declared_types(dataset, read):
    """Columns may be in any order. An empty cell is NULL unless the column is text (O27)."""
    life = dataset(read=read)
    life.push("Kyiv,2952301,0482-01-01,2024-01-02T03:00:00Z,847.66,2", 'Lviv,717273,"",,,""', header=HEADER)
    life.push("2024-01-02,007,Utrecht,,,", header="seen,population,city,founded,area,zone")

    utrecht = ("Utrecht", 7, None, datetime(2024, 1, 2, tzinfo=UTC), None, None)
    assert life.data(*FIELDS) == [KYIV, LVIV, utrecht]


def test_values_of_json_become_the_declared_types(dataset):
    """A missing key is NULL."""
    life = dataset(read="{kind: ndJson}")
    life.push_texts(
        '{"city": "Kyiv", "population": 2952301, "founded": "0482-01-01", "area": 847.66,'
        ' "seen": "2024-01-02T03:00:00Z", "zone": "2"}\n{"population": "717273", "city": "Lviv"}\n',
        ending="json",
    )

    assert life.data(*FIELDS) == [KYIV, LVIV]


def test_columns_of_parquet_become_the_declared_types(dataset, tmp_path):
    life = dataset(read="{kind: parquet}")
    cells = ["Kyiv", "2952301", "0482-01-01", "2024-01-02 03:00:00", "847.66", "2"]
    pq.write_table(
        pa.table({name: [cell] for name, cell in zip(FIELDS, cells, strict=True)}), tmp_path / "a.parquet"
    )
    life.push_files(tmp_path / "a.parquet")
    pq.write_table(
        pa.table({name: [value] for name, value in zip(FIELDS, KYIV, strict=True)}), tmp_path / "b"
    )
    life.push_files(tmp_path / "b")

    assert life.data(*FIELDS) == [KYIV, KYIV]


UNREADABLE = {
    "A,many,,,,": "column `population`: `many` is not of type Int64.",
    "A,1.5,,,,": "column `population`: `1.5` is not of type Int64.",
    "A,1,2023-02-30,,,": "column `founded`: `2023-02-30` is not of type Date.",
    "A,1,,yesterday,,": "column `seen`: `yesterday` is not of type Timestamp.",
    "A,1,,,1.234,": "column `area`: `1.234` is not of type Decimal(9, 2).",
    "A,1,,,,256": "column `zone`: `256` is not of type UInt8.",
}
MISSING = {"A,,,,,": "population", 'A,"",,,,': "population", ",1,,,,": "city"}


def test_values_outside_the_declared_types_are_refused(dataset):
    """Rows are refused with file and line, NULL in a required column by its own message, and other columns as
    before."""
    life = dataset(read=CSV)
    for number, (row, message) in enumerate(UNREADABLE.items(), 1):
        error = life.refused(f"Kyiv,1,,,, {row}", header=HEADER, code="unreadable-value")
        assert error.message.startswith(f"push-{number}-1.csv, line 3")
        assert error.message.endswith(message)
    for row, column in MISSING.items():
        error = life.refused(f"Kyiv,1,,,, {row}", header=HEADER, code="null-in-required-column")
        assert error.message == f"Column `{column}` contains 1 null values while none were expected."
    error = life.refused("A,1,,,,,x", header=f"{HEADER},more", code="incompatible-schema")
    assert error.keys == ["more"]


def test_a_year_in_a_timestamp_event_time_is_read_as_a_year(dataset):
    """O5: The table's type decides for the event time. A file's `offset` is stored as `_offset`."""
    data_schema = schema(event_time="Timestamp", offset="Int64", city="String", _offset="Int32")
    life = dataset(read=CSV, after=(data_schema,))
    assert life.push("2019,7,A", header="event_time,offset,city").counts == counts(appended=1)

    assert life.data("event_time", "city", "_offset") == [(datetime(2019, 1, 1, tzinfo=UTC), "A", 7)]


def test_a_query_decides_the_types_of_its_output(dataset):
    life = dataset(
        read=CSV,
        preprocess="{kind: Sql, query: 'select city, cast(population as bigint) population from input'}",
        after=(schema(city="String", population="Int64"),),
    )
    life.push("A,1", header="city,population")

    assert life.data("city", "population") == [("A", 1)]


@pytest.mark.parametrize(
    ("read", "type_", "stored_time"),
    [
        (CSV, "Timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
        ("{kind: csv, header: true, inferSchema: true}", "Date", date(2020, 1, 1)),
        (CSV, "Date", date(2020, 1, 1)),
        ("{kind: csv, header: true, inferSchema: true}", "Timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
    ][: deep(4, 2)],
)
def test_a_day_in_the_event_time_gets_the_type_of_the_dataset(dataset, read, type_, stored_time):
    """It is a day, or the first instant of a day."""
    life = dataset(read=read, after=(schema(event_time=type_, city="String"),))
    life.push("2020-01-01,Kyiv", header="event_time,city")

    assert life.data("event_time", "city") == [(stored_time, "Kyiv")]
