"""The rows of a file of any format that a manifest can name (section 1.6)."""

from pathlib import Path

import pyarrow as pa

from backstory.doors.odf.manifest.read import (
    Csv,
    EsriShapefile,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Parquet,
    Reading,
)
from backstory.formats.csv.options import dialect
from backstory.formats.csv.rows import csv_rows
from backstory.formats.encoded import encoding
from backstory.formats.expected import inner_fields
from backstory.formats.json.rows import json_rows
from backstory.formats.parquet.plain import plain_parquet
from backstory.formats.parquet.rows import parquet_rows
from backstory.formats.produced import UNTOLD, Rows, Told
from backstory.formats.values.texts import TimeFormats, parser, time_formats
from backstory.formats.wrapping.room import Bound

__all__ = ["Rows", "plain_parquet", "refuse_unsupported", "rows_of"]


def refuse_unsupported(how: Reading, schema: pa.Schema | None = None) -> None:
    """Raises UsageError for what any file would be refused for: an option, or a type without a text form."""
    match how:
        case Csv():
            times = dialect(how).times
        case Json() | NdJson():
            encoding(how.encoding)
            times = time_formats(how.date_format, how.timestamp_format)
        case Parquet():
            return  # what can become of its columns is seen in the file
        case _:
            times = TimeFormats()
    nested = not isinstance(how, Csv | EsriShapefile)
    for field in schema or ():
        _refuse_unwritable(field, times, nested=nested)


def _refuse_unwritable(field: pa.Field, times: TimeFormats, *, nested: bool) -> None:
    if nested and pa.types.is_nested(field.type):
        for inner in inner_fields(field):
            _refuse_unwritable(inner, times, nested=nested)
    else:
        parser(field, times)


def rows_of(
    path: Path,
    name: str,
    how: Csv | Json | NdJson | GeoJson | NdGeoJson | EsriShapefile | Parquet,
    schema: pa.Schema | None,
    told: Told = UNTOLD,
    bound: Bound | None = None,
) -> Rows:
    """The rows of a file in its order, with the declared columns or with those that are in it.

    `name` is what messages call the file. Without a schema a column is of the type that `told` has for it;
    every other is optional, and one without a single value of type null; a file without a byte has no
    columns then. `bound` is that of what is unpacked, without it every door's. Raises UsageError
    for an option that is not supported, and Refused for what is not of the format or of the schema:
    what concerns all rows at once, the others when their batch is asked for.
    """
    match how:
        case Csv():
            return csv_rows(path, name, how, schema, told)
        case Parquet():
            return parquet_rows(path, name, how, schema, told)
        case EsriShapefile():
            # pyshp is asked for by shapefiles only.
            from backstory.formats.shapefile.rows import shapefile_rows

            return shapefile_rows(path, name, how, schema, told, bound)
        case _:
            return json_rows(path, name, how, schema, told)
