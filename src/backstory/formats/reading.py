"""The rows of a file of any format, as its options say it is written (section 1.6)."""

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
    """Raises UsageError for a type that no file of the format has a form for."""
    if isinstance(options, ParquetOptions):
        return  # what can become of its columns is seen in the file
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
    told: Told = UNTOLD,
    bound: Bound | None = None,
) -> ProducedRows:
    """The rows of a file in its order, with the declared columns or with those that are in it.

    `name` is what messages call the file. Without a schema a column is of the type that `told` has for it;
    every other is optional, and one without a single value of type null; a file without a byte has no
    columns then. `bound` is that of what is unpacked, without it every door's. Raises UsageError for a
    declared type that the format has no form for, and Refused for what is not of the format or of the
    schema: what concerns all rows at once, the others when their batch is asked for.
    """
    stamp = stamp_of(path)
    with refuse_changes(stamp):
        rows = _rows_of(path, name, options, schema, told, bound)
    return replace(rows, batches=while_unchanged(rows.batches, stamp))


def _rows_of(
    path: Path, name: str, options: Options, schema: pa.Schema | None, told: Told, bound: Bound | None
) -> ProducedRows:
    match options:
        case CsvOptions():
            return csv_rows(path, name, options, schema, told)
        case ParquetOptions():
            return parquet_rows(path, name, options, schema, told)
        case ShapefileOptions():
            # pyshp is asked for by shapefiles only.
            from backstory.formats.shapefile import shapefile_rows

            return shapefile_rows(path, name, options, schema, told, bound)
        case JsonOptions():
            return json_rows(path, name, options, schema, told)
