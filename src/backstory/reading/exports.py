"""Write the whole history of a table, read from its files or by Spark, to one CSV or Parquet file.

The rows are written to a temporary file, which replaces the target when it is complete.
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from backstory.errors import TryAgain, UsageError
from backstory.formats.memory import FULL
from backstory.formats.values.exactly import all_optional
from backstory.model.receipt import Receipt
from backstory.model.values import as_json, base64_text
from backstory.reading.lifetimes import STATED_FROM, STATED_TO
from backstory.reading.options import ExportRequest
from backstory.reading.questions import HISTORIES, KnownTable, Rows
from backstory.reading.timelines import KNOWN_FROM, KNOWN_TO, name_beside
from backstory.stores.metadata.values import values_of


def _open_csv(file: Path, schema: pa.Schema) -> pyarrow.csv.CSVWriter:
    """A CSV writer: text quoted if needed, NULL as an empty cell, bytes as base64, nested values as JSON."""
    options = pyarrow.csv.WriteOptions(quoting_style="needed")
    return pyarrow.csv.CSVWriter(file, _csv_rows(schema.empty_table()).schema, write_options=options)


def _csv_rows(rows: pa.Table) -> pa.Table:
    """The rows, in which values that Arrow cannot write as CSV are converted to text."""
    columns, t = rows.columns, pa.types
    for place, column in enumerate(columns):
        if any(is_(column.type) for is_ in (t.is_nested, t.is_binary, t.is_fixed_size_binary)):
            columns[place] = pa.array(map(_text, values_of(column)), pa.string())
    return pa.table(columns, rows.column_names)


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return base64_text(value)
    return None if value is None else as_json(value, base64_text)


_OWN: Final = {STATED_FROM: KNOWN_FROM, STATED_TO: KNOWN_TO}
# A row group has at least this many rows or bytes.
_GROUP_ROWS, _GROUP_BYTES = 100_000, 1 << 26


@dataclass(frozen=True, slots=True, repr=False)
class Export(Receipt):
    """The receipt of an export: the table, its file, the axis of the history, and the number of rows."""

    table: str
    file: str
    axis: str
    rows: int


def write(file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows and return their number. If the process is killed, the file is unchanged or complete."""
    rows, names = 0, _export_names(schema.names)
    shown = pa.schema([(name, all_optional(each.type)) for name, each in zip(names, schema, strict=True)])
    is_csv = file.suffix.lower() == ".csv"
    open_file = _open_csv if is_csv else partial(pq.ParquetWriter, compression="zstd")
    with _temporary_file(file) as beside, open_file(beside, shown) as sink:
        for group in _groups(batches):
            columns = [each.cast(type_) for each, type_ in zip(group.columns, shown.types, strict=True)]
            rows_of_group = pa.Table.from_arrays(columns, schema=shown)
            sink.write_table(_csv_rows(rows_of_group) if is_csv else rows_of_group)
            rows += group.num_rows
    return rows


def _export_names(names: list[str]) -> list[str]:
    """The names of the columns in the file."""
    if STATED_FROM not in names:
        return names
    return [_OWN.get(name) or name_beside(_OWN.values(), name, names) for name in names]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


@contextmanager
def _temporary_file(file: Path) -> Iterator[Path]:
    """A temporary file in the same folder. It is renamed to `file` if the block succeeds, or else deleted."""
    beside = file.absolute().with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        yield beside
        with beside.open("rb") as whole:
            os.fsync(whole.fileno())
        beside.replace(file)
    except ConnectionError:
        raise  # an error of Spark's gateway
    except OSError as stop:
        if stop.errno in FULL:
            message = f"The disk is full: {file} was not written."
            raise TryAgain("disk-full", message, "Make room, or name another place.") from None
        message = f"{file} cannot be written: {stop.strerror}."
        raise UsageError("no-file", message, "Name another file.") from None
    finally:
        beside.unlink(missing_ok=True)


def export(table: KnownTable[Rows, Any], request: ExportRequest) -> Export:
    """Write every version, or on axis `both` every statement, sorted by key and times.

    For a table without a history, the rows are written, and axis `both` raises UsageError. Raises Unreadable,
    before anything is written, for files that only Spark can read.
    """
    if request.axis == "both":
        rows = table.statements()
    else:
        rows = table.versions() if table.shape.layout in HISTORIES else table.live_rows()
    count = write(request.file, *table.in_order(rows))
    return Export(str(table.shape.table), str(request.file), request.axis, count)
