"""The rows of a file of any format that a manifest can name (section 1.6)."""

from pathlib import Path

import pyarrow as pa

from backstory.doors.odf.formats.csv_rows import csv_rows
from backstory.doors.odf.formats.json_rows import json_rows
from backstory.doors.odf.formats.parquet_rows import parquet_rows, plain_parquet
from backstory.doors.odf.formats.rows import Rows
from backstory.doors.odf.manifest.read import (
    Csv,
    EsriShapefile,
    GeoJson,
    Json,
    NdGeoJson,
    NdJson,
    Parquet,
)

__all__ = ["Rows", "plain_parquet", "rows_of"]


def rows_of(
    path: Path,
    name: str,
    how: Csv | Json | NdJson | GeoJson | NdGeoJson | EsriShapefile | Parquet,
    schema: pa.Schema | None,
) -> Rows:
    """The rows of a file in its order, with the declared columns or with those that are in it.

    `name` is what messages call the file. Without a schema every column is optional, and one
    without a single value of type null; a file without a byte has no columns then. Raises UsageError
    for an option that is not supported, and Refused for what is not of the format or of the schema:
    what concerns all rows at once, the others when their batch is asked for.
    """
    match how:
        case Csv():
            return csv_rows(path, name, how, schema)
        case Parquet():
            return parquet_rows(path, name, how, schema)
        case EsriShapefile():
            # pyshp is asked for by shapefiles only.
            from backstory.doors.odf.formats.shapefile_rows import shapefile_rows

            return shapefile_rows(path, name, how, schema)
        case _:
            return json_rows(path, name, how, schema)
