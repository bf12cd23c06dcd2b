"""Readers of a delivery's batch files, and conversions of Arrow rows to a table's columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from backstory.formats.csv.typed_rows import read_csv
from backstory.formats.memory import MemoryLease
from backstory.formats.parquet.typed_rows import read_parquet
from backstory.formats.rows import Rows, arrow_type
from backstory.formats.wrapping.batch_file import BatchFile, Encoding, Format
from backstory.model.layout import ROW_ID
from backstory.model.table import Column
from backstory.model.types import ColumnType

_READERS = {Format.CSV: read_csv, Format.PARQUET: read_parquet}
THREADS = 2


def arrow_schema(columns: Mapping[str, ColumnType]) -> pa.Schema:
    """The Arrow schema of columns with these types."""
    return pa.schema([pa.field(name, arrow_type(type_)) for name, type_ in columns.items()])


def rows_as(columns: Iterable[Column], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert a few rows to an Arrow table with these columns. Missing values are NULL."""
    schema = arrow_schema({column.name: column.type for column in columns})
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def shape_rows(rows: pa.Table, columns: Iterable[Column], *, ids: bool = False) -> pa.Table:
    """Give the rows exactly these columns, and row ids if the rows have them or `ids` is set.

    Missing columns, and missing ids, are NULL.
    """
    row_id = [pa.field(ROW_ID, pa.int64())] if ids or ROW_ID in rows.column_names else []
    named = arrow_schema({column.name: column.type for column in columns})
    return in_schema(rows, pa.schema([*named, *row_id]))


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give the rows exactly these columns and types. Missing columns and struct fields are NULL."""
    present = set(rows.column_names)
    values = [
        _in_type(rows[field.name], field.type) if field.name in present else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(values, schema=schema)


def _in_type(values: pa.ChunkedArray, type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values cast to a type.

    Struct fields are matched by name, because the file or the table may be older than a field.
    """
    if not pa.types.is_struct(type_) or values.type == type_:
        return values.cast(type_)
    whole = values.combine_chunks()
    present = {part.name for part in whole.type}
    parts = [
        whole.field(part.name).cast(part.type) if part.name in present else pa.nulls(len(whole), part.type)
        for part in type_
    ]
    return pa.StructArray.from_arrays(parts, fields=list(type_), mask=whole.is_null())


def read_files(
    files: Sequence[BatchFile],
    encoding: Encoding,
    columns: Mapping[str, ColumnType],
    wanted: frozenset[str],
    lease: MemoryLease | None = None,
) -> list[tuple[BatchFile, Rows]]:
    """The files that have rows, in order, each with its rows and the columns of its header.

    Files are read in parallel threads: decryption, decompression and parsing release the interpreter lock.
    Raises Refused for the first file in order that cannot be read. Raises TooLarge if the rows exceed the
    lease.
    """

    def whole(file: BatchFile) -> Rows | None:
        parts: Iterator[Rows] = _READERS[encoding.format](file, encoding, columns, wanted, lease)
        collected = list(parts)
        return Rows.join(collected) if collected else None

    with ThreadPoolExecutor(THREADS) as pool:
        read = zip(files, pool.map(whole, files), strict=True)
        return [(file, rows) for file, rows in read if rows is not None and rows.count]


def stream_file(
    file: BatchFile, encoding: Encoding, columns: Mapping[str, ColumnType], wanted: frozenset[str]
) -> Iterator[Rows]:
    """The rows of one file in order, in parts. Memory does not grow with the number of rows."""
    return _READERS[encoding.format](file, encoding, columns, wanted)
