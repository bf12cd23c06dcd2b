"""Rows of a Parquet file, row group by row group (section 1.6, B25)."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.odf.formats.exactly import becomes, exactly, plain_type
from backstory.doors.odf.formats.expected import is_narrow, told
from backstory.doors.odf.formats.rows import (
    BATCH,
    MEND,
    Rows,
    malformed,
    missing,
    refuse_repeated,
    typed_or_refused,
    unknown,
)
from backstory.doors.odf.manifest.read import Parquet, UnknownFields
from backstory.errors import Refused


def parquet_rows(path: Path, name: str, how: Parquet, schema: pa.Schema | None) -> Rows:
    """The file's rows: the declared columns by name, or all of the file's as types of ours.

    Instants without a zone are UTC. Raises Refused for what is not Parquet, a column that is missing
    or of a type that has no exact way to the declared one; a value that has none is refused when
    its batch is asked for.
    """
    stored = _stored(path, name)
    refuse_repeated(name, stored.names)
    if schema is None:
        schema = pa.schema([_ours(field, name) for field in stored])
    else:
        _refuse_others(stored, schema, name, strict=how.unknown_fields is UnknownFields.ERROR)
    return Rows(schema, _batches(path, name, schema))


def plain_parquet(path: Path, schema: pa.Schema | None) -> bool:
    """Whether an engine can read the file as it is, with the same rows as `rows_of` gives.

    It can if all columns are of types of ours already, have names of their own, and, with a
    schema, are the declared ones in their order and need no look at NULLs and ranges.
    """
    try:
        stored = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    if len(set(stored.names)) != len(stored.names):
        return False
    if any(_as_it_is(field.type) is False for field in stored):
        return False
    if schema is None:
        return True
    return stored.names == schema.names and all(
        ours.nullable and not is_narrow(ours) and ours.type == theirs.type
        for ours, theirs in zip(schema, stored, strict=True)
    )


def _as_it_is(type_: pa.DataType) -> bool:
    """Whether a type is one of ours with all that is in it."""
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


def _stored(path: Path, name: str) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (pa.ArrowException, OSError) as stop:
        if isinstance(stop, FileNotFoundError | PermissionError):
            raise
        raise malformed(name, "", "it is not Parquet") from None


def _ours(field: pa.Field, name: str) -> pa.Field:
    """The column as one of ours, optional."""
    type_ = plain_type(field.type)
    if type_ is None:
        raise Refused(
            "unsupported-type",
            f"{name}: column `{field.name}` is of type {field.type}, which no table of ours can hold.",
            "Declare a `schema` in `read` without the column.",
            [field.name],
        )
    return pa.field(field.name, type_)


def _refuse_others(stored: pa.Schema, schema: pa.Schema, name: str, *, strict: bool) -> None:
    for field in schema:
        if field.name not in stored.names:
            raise missing(name, field.name, stored.names)
        theirs = stored.field(field.name).type
        if not becomes(theirs, field):
            raise Refused(
                "incompatible-type",
                f"{name}: column `{field.name}` is of type {theirs}, and declared as {told(field)}.",
                f"{MEND}, or `schema` in the manifest.",
                [field.name],
            )
    extra = [column for column in stored.names if column not in schema.names]
    if extra and strict:
        raise unknown(name, extra)


def _batches(path: Path, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    done = 0
    with pq.ParquetFile(path) as file:
        batches = file.iter_batches(BATCH, columns=schema.names)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as stop:
                raise malformed(name, f"after row {done}", f"it is not whole Parquet ({stop})") from None
            if batch is None:
                return
            first = done + 1

            def row(place: int, first: int = first) -> str:
                return f"row {first + place}"

            columns = []
            for field in schema:

                def convert(values: pa.Array, field: pa.Field = field) -> pa.Array:
                    return exactly(values, field)

                columns.append(typed_or_refused(batch.column(field.name), field, convert, name, row))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
            done += batch.num_rows
