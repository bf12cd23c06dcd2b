"""Rows of a file of any format, read with the options of that format (section 1.6)."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from backstory.formats.csv.rows import csv_rows
from backstory.formats.expected import inner_fields
from backstory.formats.json.rows import json_rows
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions, ShapefileOptions
from backstory.formats.parquet.rows import parquet_rows
from backstory.formats.produced import UNTOLD, ProducedRows, Told
from backstory.formats.unchanged import refuse_changes, stamp_of, while_unchanged
from backstory.formats.values.texts import TextForms, parser
from backstory.formats.wrapping.room import Bound

Options = CsvOptions | JsonOptions | ParquetOptions | ShapefileOptions


def refuse_unwritable(options: Options, schema: pa.Schema) -> None:
    """Raise UsageError for a declared type that the format cannot represent."""
    if isinstance(options, ParquetOptions):
        return  # the conversion is checked against the file's own schema
    forms = TextForms() if isinstance(options, ShapefileOptions) else options.forms
    for field in schema:
        _refuse_unwritable(field, forms, nested=isinstance(options, JsonOptions))


def _refuse_unwritable(field: pa.Field, forms: TextForms, *, nested: bool) -> None:
    if nested and pa.types.is_nested(field.type):
        for inner in inner_fields(field):
            _refuse_unwritable(inner, forms, nested=nested)
    else:
        parser(field, forms)


def rows_of(
    path: Path,
    name: str,
    options: Options,
    schema: pa.Schema | None,
    dataset_types: Told = UNTOLD,
    bound: Bound | None = None,
) -> ProducedRows:
    """The rows of a file in its order, with the declared columns or else with the file's own columns.

    `name` is the file's name in messages. Without a schema, a column has its type in `dataset_types`. Every
    other column is optional, and has the type null if it has no values. An empty file then has no columns.
    `bound` limits the unpacked bytes; its default is the limit of every door.

    Raises UsageError for a declared type that the format cannot represent. Raises Refused for a file that
    violates its format or the schema. Errors in single rows are raised when their batch is read.
    """
    stamp = stamp_of(path)
    with refuse_changes(stamp):
        rows = _rows_of(path, name, options, schema, dataset_types, bound)
    return replace(rows, batches=while_unchanged(rows.batches, stamp))


def _rows_of(
    path: Path,
    name: str,
    options: Options,
    schema: pa.Schema | None,
    dataset_types: Told,
    bound: Bound | None,
) -> ProducedRows:
    match options:
        case CsvOptions():
            return csv_rows(path, name, options, schema, dataset_types)
        case ParquetOptions():
            return parquet_rows(path, name, options, schema, dataset_types)
        case ShapefileOptions():
            # pyshp is needed for shapefiles only.
            from backstory.formats.shapefile import shapefile_rows

            return shapefile_rows(path, name, options, schema, dataset_types, bound)
        case JsonOptions():
            return json_rows(path, name, options, schema, dataset_types)
