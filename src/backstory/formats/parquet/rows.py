"""Rows of a Parquet file, and a check whether an engine may read the file directly (section 1.6, B25)."""

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.errors import Refused
from backstory.formats.expected import is_narrow, type_name
from backstory.formats.options import ParquetOptions
from backstory.formats.parquet.calendars import legacy_columns, refuse_legacy, with_instants
from backstory.formats.produced import (
    BATCH,
    MEND,
    UNTOLD,
    ProducedRows,
    Told,
    malformed_row,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown_columns,
)
from backstory.formats.values.exactly import all_optional, can_become, cast_exactly, plain_type


def parquet_rows(
    path: Path, name: str, options: ParquetOptions, schema: pa.Schema | None, dataset_types: Told = UNTOLD
) -> ProducedRows:
    """The file's rows, with the declared columns by name, or else with all columns in table types.

    Raises Refused for a file that is not Parquet, and for a missing column. Raises Refused for a column whose
    type has no exact conversion to the declared type. Errors in single values are raised when their batch is
    read.
    """
    stored = _stored_schema(path, name)
    refuse_repeated(name, stored.names)
    if schema is None:
        schema = pa.schema(
            [_target_field(field, name, dataset_types, naive=options.naive) for field in stored]
        )
    else:
        _refuse_others(stored, schema, name, strict=options.strict)
    return ProducedRows(_all_optional(schema), _batches(path, name, schema))


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. Times of 96 bits are in microseconds, because nanoseconds end in the year 2262."""
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _stored_schema(path: Path, name: str) -> pa.Schema:
    try:
        with open_parquet(path) as file:
            return with_instants(file)
    except (pa.ArrowException, OSError) as stop:
        if isinstance(stop, FileNotFoundError | PermissionError):
            raise
        raise malformed_row(name, "", "it is not Parquet") from None


def _target_field(field: pa.Field, name: str, declared: Told, *, naive: bool) -> pa.Field:
    """The column as declared if it can be cast, or else an optional column of a table type."""
    target = declared.get(field.name)
    return (
        target if target is not None and can_become(field.type, target) else _ours(field, name, naive=naive)
    )


def _ours(field: pa.Field, name: str, *, naive: bool) -> pa.Field:
    """An optional column of a table type. Raises Refused if no table type fits."""
    type_ = plain_type(field.type, naive=naive)
    if type_ is None:
        raise Refused(
            "unsupported-type",
            f"{name}: column `{field.name}` is of type {field.type}, which tables cannot hold.",
            _remedy(field.type),
            [field.name],
        )
    return pa.field(field.name, type_)


def _remedy(type_: pa.DataType) -> str:
    if pa.types.is_time(type_) or pa.types.is_duration(type_):
        declare = "Time" if pa.types.is_time(type_) else "Duration"
        return f"Declare it in a `schema` in `read` as {declare}, a number of its unit."
    return "Declare a `schema` in `read` without the column."


def _all_optional(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(all_optional(field.type)) for field in schema])


def _refuse_others(stored: pa.Schema, schema: pa.Schema, name: str, *, strict: bool) -> None:
    for field in schema:
        if field.name not in stored.names:
            raise missing(name, field.name, stored.names)
        theirs = stored.field(field.name).type
        if not can_become(theirs, field):
            raise Refused(
                "incompatible-type",
                f"{name}: column `{field.name}` is of type {theirs}, but is declared as {type_name(field)}.",
                f"{MEND}, or `schema` in the manifest.",
                [field.name],
            )
    extra = [column for column in stored.names if column not in schema.names]
    if extra and strict:
        raise unknown_columns(name, extra)


def _batches(path: Path, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    done = 0
    with open_parquet(path) as file:
        legacy, footer = legacy_columns(file), file.metadata.metadata
        batches = file.iter_batches(BATCH, columns=schema.names)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as stop:
                raise malformed_row(
                    name, f"after row {done}", f"it is not complete Parquet ({stop})"
                ) from None
            if batch is None:
                return
            first = done + 1

            def row(place: int, first: int = first) -> str:
                return f"row {first + place}"

            columns = []
            for field in schema:

                def convert(values: pa.Array, field: pa.Field = field) -> pa.Array:
                    return cast_exactly(values, field)

                if field.name in legacy:
                    refuse_legacy(batch.column(field.name), field.name, name, footer)
                columns.append(typed_or_refused(batch.column(field.name), field, convert, name, row))
            yield pa.RecordBatch.from_arrays(columns, schema=_all_optional(schema))
            done += batch.num_rows


_EPOCH = date(1970, 1, 1)
_FIRST, _END = (date.min - _EPOCH).days, (date.max - _EPOCH).days + 1
_CODECS_OF_ENGINES = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"}
_DAYS = {"DATE": 1, "TIMESTAMP": timedelta(days=1) // timedelta(microseconds=1)}


def plain_parquet(path: Path, schema: pa.Schema | None, dataset_types: Told = UNTOLD) -> bool:
    """Whether an engine can read the file directly, because no value needs a check.

    All columns must have table types and distinct names. The file's statistics must show that all days and
    times are in the years 0001 to 9999. Columns must match the schema in order, or the dataset's types if
    there is no schema. They must need no check of NULLs, ranges and lengths.
    """
    try:
        with open_parquet(path) as file:
            stored, metadata, legacy = file.schema_arrow, file.metadata, legacy_columns(file)
    except (pa.ArrowException, OSError):
        return False
    if len(set(stored.names)) != len(stored.names) or not all(_as_it_is(field.type) for field in stored):
        return False
    if legacy or not _within_years(metadata) or not _codecs(metadata) <= _CODECS_OF_ENGINES:
        return False
    if schema is None:
        return all(_is(dataset_types.get(theirs.name, theirs), theirs) for theirs in stored)
    return stored.names == schema.names and all(map(_is, schema, stored))


def _is(ours: pa.Field, theirs: pa.Field) -> bool:
    """Whether every value of the stored column is valid in the target column."""
    return ours is theirs or (ours.nullable and not is_narrow(ours) and bool(ours.type == theirs.type))


def _as_it_is(type_: pa.DataType) -> bool:
    """Whether a type and all its nested types are table types."""
    if pa.types.is_null(type_) or plain_type(type_) is None:
        return False
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return len(set(names)) == len(names) and all(_as_it_is(field.type) for field in type_)
    if pa.types.is_map(type_):
        return _as_it_is(type_.key_type) and _as_it_is(type_.item_type)
    if pa.types.is_list(type_):
        return _as_it_is(type_.value_type)
    if pa.types.is_timestamp(type_):
        return type_.unit == "us" and type_.tz is not None
    return bool(type_ == plain_type(type_))


def _codecs(metadata: pq.FileMetaData) -> set[str]:
    """The compression codecs of all columns."""
    groups = (metadata.row_group(place) for place in range(metadata.num_row_groups))
    return {group.column(place).compression for group in groups for place in range(metadata.num_columns)}


def _within_years(metadata: pq.FileMetaData) -> bool:
    """Whether the statistics show years 0001 to 9999 for all days and times, including nested ones."""
    for place in range(metadata.num_columns):
        leaf = metadata.schema.column(place)
        if leaf.physical_type == "INT96":
            return False  # engines read such values differently
        day = _DAYS.get(leaf.logical_type.type)
        groups = (metadata.row_group(group).column(place) for group in range(metadata.num_row_groups))
        if day and not all(_within_days(group.statistics, day) for group in groups):
            return False
    return True


def _within_days(statistics: Any, day: int) -> bool:
    """Whether all values are within the years 0001 to 9999; `day` is the number of time units in a day."""
    if statistics is None or not statistics.has_min_max:
        return statistics is not None and statistics.num_values == 0
    return _FIRST * day <= statistics.min_raw and statistics.max_raw < _END * day
