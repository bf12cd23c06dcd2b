"""Rows of a Parquet file, row group by row group (section 1.6, B25)."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.errors import Refused
from backstory.formats.expected import type_name
from backstory.formats.parquet.calendars import legacy_columns, refuse_legacy, with_instants
from backstory.formats.parquet.options import ParquetOptions
from backstory.formats.produced import (
    BATCH,
    MEND,
    UNTOLD,
    ProducedRows,
    Told,
    malformed,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown,
)
from backstory.formats.values.exactly import becomes, exactly, loose, plain_type


def parquet_rows(
    path: Path, name: str, options: ParquetOptions, schema: pa.Schema | None, told: Told = UNTOLD
) -> ProducedRows:
    """The file's rows: the declared columns by name, or all of the file's as types of ours.

    Raises Refused for what is not Parquet, a column that is missing
    or of a type that has no exact way to the declared one; a value that has none is refused when
    its batch is asked for.
    """
    stored = _stored(path, name)
    refuse_repeated(name, stored.names)
    if schema is None:
        schema = pa.schema([_target_field(field, name, told, naive=options.naive) for field in stored])
    else:
        _refuse_others(stored, schema, name, strict=options.strict)
    return ProducedRows(_loose(schema), _batches(path, name, schema))


def opened(path: Path) -> pq.ParquetFile:
    """The file, its older instants of 96 bits as microseconds: in nanoseconds they end with the year 2262."""
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _stored(path: Path, name: str) -> pa.Schema:
    try:
        with opened(path) as file:
            return with_instants(file)
    except (pa.ArrowException, OSError) as stop:
        if isinstance(stop, FileNotFoundError | PermissionError):
            raise
        raise malformed(name, "", "it is not Parquet") from None


def _target_field(field: pa.Field, name: str, declared: Told, *, naive: bool) -> pa.Field:
    """The column as declared, if a cast leads there; else as one of ours, optional."""
    target = declared.get(field.name)
    return target if target is not None and becomes(field.type, target) else _ours(field, name, naive=naive)


def _ours(field: pa.Field, name: str, *, naive: bool) -> pa.Field:
    """The column as one of ours, optional."""
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


def _loose(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(loose(field.type)) for field in schema])


def _refuse_others(stored: pa.Schema, schema: pa.Schema, name: str, *, strict: bool) -> None:
    for field in schema:
        if field.name not in stored.names:
            raise missing(name, field.name, stored.names)
        theirs = stored.field(field.name).type
        if not becomes(theirs, field):
            raise Refused(
                "incompatible-type",
                f"{name}: column `{field.name}` is of type {theirs}, but is declared as {type_name(field)}.",
                f"{MEND}, or `schema` in the manifest.",
                [field.name],
            )
    extra = [column for column in stored.names if column not in schema.names]
    if extra and strict:
        raise unknown(name, extra)


def _batches(path: Path, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    done = 0
    with opened(path) as file:
        legacy, footer = legacy_columns(file), file.metadata.metadata
        batches = file.iter_batches(BATCH, columns=schema.names)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as stop:
                raise malformed(name, f"after row {done}", f"it is not complete Parquet ({stop})") from None
            if batch is None:
                return
            first = done + 1

            def row(place: int, first: int = first) -> str:
                return f"row {first + place}"

            columns = []
            for field in schema:

                def convert(values: pa.Array, field: pa.Field = field) -> pa.Array:
                    return exactly(values, field)

                if field.name in legacy:
                    refuse_legacy(batch.column(field.name), field.name, name, footer)
                columns.append(typed_or_refused(batch.column(field.name), field, convert, name, row))
            yield pa.RecordBatch.from_arrays(columns, schema=_loose(schema))
            done += batch.num_rows
