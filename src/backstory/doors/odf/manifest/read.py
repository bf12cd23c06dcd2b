"""How fetched bytes become rows: prepare, read, preprocess (sections 1.5 to 1.7)."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from backstory.doors.odf.manifest.data_schema import DataSchema
from backstory.doors.odf.manifest.part import ByKind, Part, cased, worded, wrong


class FileCompression(StrEnum):
    """What packed a file."""

    GZIP = "Gzip"
    ZIP = "Zip"


class Decompress(Part):
    """Unpack; `subPath` names the entry of a zip, globs are allowed."""

    kind: Annotated[Literal["Decompress"], cased("Decompress")] = "Decompress"
    format: Annotated[FileCompression, worded(FileCompression)]
    sub_path: str | None = None


class Pipe(Part):
    """A program that reads the bytes and writes the result, without a shell (decision O12)."""

    kind: Annotated[Literal["Pipe"], cased("Pipe")] = "Pipe"
    command: tuple[str, ...] = Field(min_length=1)


Prepare = Annotated[Decompress | Pipe, ByKind("prepare")]


class UnknownFields(StrEnum):
    """What happens to fields of the source that the schema does not name (an extension)."""

    IGNORE = "ignore"
    ERROR = "error"


# The kind of older versions, and what to do about it.
RENAMED: Final = {"jsonlines": ("JsonLines was renamed to NdJson", "Use NdJson.")}


def _no_list(schema: Any) -> Any:
    """Tell the form of versions before 0.38 from a schema."""
    if isinstance(schema, list | tuple):
        raise wrong("a list of columns is the older form of a schema", "Rename it to ddlSchema.")
    return schema


class Reading(Part):
    """What all readers share: a schema, or its older form, or none."""

    schema_: Annotated[DataSchema | None, BeforeValidator(_no_list)] = Field(None, alias="schema")
    ddl_schema: tuple[str, ...] | None = None
    unknown_fields: Annotated[UnknownFields, worded(UnknownFields)] = UnknownFields.IGNORE


class Csv(Reading):
    """Comma-separated values; the options after `multiLine` were removed from the format (lint L9).

    Values in quotes may contain line breaks whatever `multiLine` says (decision O26).
    """

    kind: Annotated[Literal["Csv"], cased("Csv")] = "Csv"
    separator: str = ","
    encoding: str = "utf8"
    quote: str = '"'
    escape: str = "\\"
    header: bool = False
    infer_schema: bool = False
    null_value: str = ""
    date_format: str = "rfc3339"
    timestamp_format: str = "rfc3339"
    multi_line: bool = False
    comment: str | None = None
    enforce_schema: bool | None = None
    ignore_leading_white_space: bool | None = None
    ignore_trailing_white_space: bool | None = None
    empty_value: str | None = None
    nan_value: str | None = None
    positive_inf: str | None = None
    negative_inf: str | None = None


class Json(Reading):
    """An array of objects, at the root or at a dotted path."""

    kind: Annotated[Literal["Json"], cased("Json")] = "Json"
    sub_path: str | None = None
    date_format: str = "rfc3339"
    timestamp_format: str = "rfc3339"
    encoding: str = "utf8"


class NdJson(Reading):
    """One object in each line."""

    kind: Annotated[Literal["NdJson"], cased("NdJson")] = "NdJson"
    date_format: str = "rfc3339"
    timestamp_format: str = "rfc3339"
    encoding: str = "utf8"


class GeoJson(Reading):
    """A FeatureCollection."""

    kind: Annotated[Literal["GeoJson"], cased("GeoJson")] = "GeoJson"


class NdGeoJson(Reading):
    """One feature in each line."""

    kind: Annotated[Literal["NdGeoJson"], cased("NdGeoJson")] = "NdGeoJson"


class EsriShapefile(Reading):
    """A zip with one shapefile, or one that `subPath` chooses."""

    kind: Annotated[Literal["EsriShapefile"], cased("EsriShapefile")] = "EsriShapefile"
    sub_path: str | None = None


class Parquet(Reading):
    """A Parquet file; a schema selects columns by name and converts their types."""

    kind: Annotated[Literal["Parquet"], cased("Parquet")] = "Parquet"


Read = Annotated[
    Csv | Json | NdJson | GeoJson | NdGeoJson | EsriShapefile | Parquet, ByKind("read", refused=RENAMED)
]


class QueryStep(Part):
    """One of several queries; the one without an alias is the output."""

    alias: str | None = None
    query: str


class TemporalTable(Part):
    """For Flink only; parsed, and refused with its engine."""

    name: str
    primary_key: tuple[str, ...]


class Sql(Part):
    """SQL over the table `input`."""

    kind: Annotated[Literal["Sql"], cased("Sql")] = "Sql"
    engine: str = "spark"
    version: str | None = None
    query: str | None = None
    queries: tuple[QueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Preprocess = Annotated[Sql, ByKind("preprocess")]
