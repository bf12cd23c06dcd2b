"""Rows on their way into one file, a group at a time: CSV as the readers of files have it, or Parquet."""

import base64
import json
import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from backstory.stores.metadata.values import values_of


class ParquetRows:
    """A Parquet file with the types that the table has."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd")

    def write(self, rows: pa.Table) -> None:
        """Add rows, as a group of their own."""
        self._writer.write_table(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, stop: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


class CsvRows:
    """A CSV file: text in quotes, NULL as nothing, bytes as base64, what is nested as JSON."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        told = pa.schema([(each.name, pa.string() if _spelled(each.type) else each.type) for each in schema])
        self._schema = told
        options = pyarrow.csv.WriteOptions(quoting_style="needed")
        self._writer = pyarrow.csv.CSVWriter(file, told, write_options=options)

    def write(self, rows: pa.Table) -> None:
        """Add rows."""
        columns = [_text(each) if _spelled(each.type) else each for each in rows.columns]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, stop: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def _spelled(type_: pa.DataType) -> bool:
    """Whether Arrow has no cell for values of the type."""
    t = pa.types
    return bool(t.is_nested(type_) or t.is_binary(type_) or t.is_fixed_size_binary(type_))


def _text(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([None if each is None else _cell(each) for each in values_of(column)], pa.string())


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value in what JSON is made of: instants in UTC with a Z, decimals and what is no number as text."""
    match value:
        case Mapping():
            return {_name(each): _plain(item) for each, item in value.items()}
        case list():
            told: Any = list(map(_plain, value))
        case float() if not math.isfinite(value):
            told = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case bytes():
            told = base64.b64encode(value).decode()
        case date():
            told = value.isoformat().replace("+00:00", "Z")
        case Decimal():
            told = str(value)
        case _:
            told = value
    return told


def _name(value: Any) -> str:
    """The key of a map as a name in JSON."""
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)
