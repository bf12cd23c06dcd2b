"""Rows of Parquet files: in bounded batches, and in declared or table types (section 1.6, B25).

Neither the file's size nor the footer bounds the decoded size, because a thousand rows may share one large
dictionary value. Page sizes are therefore read from the page headers, and texts stay in dictionaries.

Spark before 3.0 and Hive may write Julian days and times, and the footer records this calendar. A date
before 15 October 1582 denotes a different day in the standard calendar. Times before 1900 are off by some
minutes, depending on the zone. Such values are refused, because a conversion would be a guess.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.errors import Refused
from backstory.formats.expected import is_narrow, type_name
from backstory.formats.options import ParquetOptions
from backstory.formats.produced import (
    BATCH,
    FIX_FILE,
    UNDECLARED,
    DeclaredFields,
    ProducedRows,
    malformed_row,
    refuse_repeated,
    require_columns,
    typed_or_refused,
)
from backstory.formats.rows import leaf_types, leaf_values, map_leaves
from backstory.formats.values.exactly import all_optional, can_become, cast_exactly, plain_type

INT32 = 5
LARGEST = 1 << 31
# Headers are nested structs of numbers, flags and texts: for the page, its kind and the statistics.
DEPTH = 4
UNCOMPRESSED, COMPRESSED = 2, 3


def page_sizes(content: bytes, start: int, length: int) -> Iterator[int]:
    """The decompressed size in bytes of each page of a column chunk, including a dictionary page.

    Raises ValueError for an invalid page header.
    """
    place, end = start, start + length
    while place < end:
        try:
            header, place = _struct(content, place, DEPTH)
            size, packed = header[UNCOMPRESSED], header[COMPRESSED]
        except (IndexError, KeyError):
            raise ValueError("no page header") from None
        if not (0 <= size < LARGEST and 0 <= packed < LARGEST):
            raise ValueError("a page of no size")
        yield size
        place += packed


def _struct(content: bytes, place: int, depth: int) -> tuple[dict[int, int], int]:
    """The 32-bit numbers of a struct in Thrift's compact protocol, by field, and the index of its end."""
    if depth == 0:
        raise ValueError("structs in structs")
    numbers: dict[int, int] = {}
    field = 0
    while kind := content[place]:
        place += 1
        if kind >> 4:
            field += kind >> 4
        else:
            number, place = _number(content, place)
            field = _zigzag(number)
        if kind & 15 == INT32:
            number, place = _number(content, place)
            numbers[field] = _zigzag(number)
        else:
            place = _skip_value(content, place, kind & 15, depth)
    return numbers, place + 1


def _skip_value(content: bytes, place: int, kind: int, depth: int) -> int:
    """The index of the end of a value that is not a 32-bit number. Raises ValueError for an unknown kind."""
    match kind:
        case 1 | 2:  # a flag, whose kind is its value
            return place
        case 3:  # a byte
            return place + 1
        case 4 | 6:  # an integer
            return _number(content, place)[1]
        case 7:  # a double
            return place + 8
        case 8:  # bytes
            size, place = _number(content, place)
            return place + size
        case 12:
            return _struct(content, place, depth - 1)[1]
    raise ValueError("no field of a page header")


def _number(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:  # noqa: PLR2004 - the last byte
            return value, place
        if shift > 63:  # noqa: PLR2004 - the bits of the largest number
            raise ValueError("a number without an end")


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


ROWS = 1 << 16
# The maximum bytes of a batch, if it has more than one row.
PIECE = 1 << 24
# Encodings whose decoded values may be larger than their encoding.
_DELTAS = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
ENTRY = 8  # bytes for a string's index in its dictionary, or for its offset


def batches(
    content: bytes, metadata: pq.FileMetaData, chosen: Sequence[str], count: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Batches of the chosen columns, which must not be nested. Strings may be dictionary arrays.

    `count` is called with the bytes of the pages that are open at the same time. Before each batch is
    returned, `count` is called with the batch's decoded size. Raises ValueError or Arrow's errors for invalid
    Parquet, and the errors of `count`.
    """
    schema = metadata.schema.to_arrow_schema()
    types = {name: schema.field(name).type for name in chosen}
    types = {name: getattr(type_, "storage_type", type_) for name, type_ in types.items()}
    chunks = _chunks(metadata, chosen)
    pages = {name: _pages(content, chunks[name]) for name in chosen}
    count(sum(map(sum, pages.values())))
    encodings = {name: {each for chunk in chunks[name] for each in chunk.encodings} for name in chosen}
    grown = {name for name in chosen if encodings[name] & _DELTAS}
    width = sum(_width(types[name], pages[name] if name in grown else ()) for name in chosen)
    as_stored = [name for name in chosen if _is_text(types[name]) and name not in grown]
    parquet = pq.ParquetFile(
        pa.BufferReader(content),
        metadata=metadata,
        read_dictionary=as_stored,
        coerce_int96_timestamp_unit="us",
    )
    for batch in parquet.iter_batches(max(1, min(ROWS, PIECE // width)), columns=list(chosen)):
        for piece, size in _row_slices(batch):
            count(size)
            yield piece


def _chunks(metadata: pq.FileMetaData, chosen: Sequence[str]) -> dict[str, list[pq.ColumnChunkMetaData]]:
    """The chunks of each chosen column, found in one pass over the footer."""
    chunks: dict[str, list[pq.ColumnChunkMetaData]] = {name: [] for name in chosen}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            if (name := chunk.path_in_schema) in chunks:
                chunks[name].append(chunk)
    return chunks


def _pages(content: bytes, chunks: Sequence[pq.ColumnChunkMetaData]) -> list[int]:
    """The sizes of a column's two largest pages, because at most two pages are open at the same time."""
    largest: list[int] = []
    for chunk in chunks:
        starts = [chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset]
        for size in page_sizes(content, min(starts), chunk.total_compressed_size):
            largest = sorted([*largest, size])[-2:]
    return largest


def _width(type_: pa.DataType, pages: Sequence[int]) -> int:
    """The maximum size in bytes of a value in a batch. No value is longer than its page."""
    if pages:
        return ENTRY + max(pages)
    return ENTRY if _is_text(type_) or pa.types.is_null(type_) else 1 + type_.bit_width // 8


def _is_text(type_: pa.DataType) -> bool:
    inner = type_.value_type if pa.types.is_dictionary(type_) else type_
    tests = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(test(inner) for test in tests)


def _row_slices(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Slices of the batch with about `PIECE` decoded bytes each, and their sizes."""
    if not batch.num_rows:
        return
    ends = np.cumsum(sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows)))
    borders = np.flatnonzero(np.diff(ends // PIECE)) + 1
    for first, after in pairwise([0, *borders.tolist(), batch.num_rows]):
        before = ends[first - 1] if first else 0
        yield batch.slice(first, after - first), int(ends[after - 1] - before)


def _sizes(column: pa.Array) -> np.ndarray:
    """The decoded size in bytes of each value of a column."""
    if not pa.types.is_dictionary(column.type) or not _is_text(column.type):
        return np.full(len(column), column.nbytes / max(len(column), 1))
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0)
    return np.asarray(pc.fill_null(lengths.take(column.indices), 0)).astype(np.float64) + ENTRY


_EPOCH: Final = date(1970, 1, 1)
_GREGORIAN: Final = (date(1582, 10, 15) - _EPOCH).days
_STANDARD: Final = (date(1900, 1, 1) - _EPOCH).days  # zones have their present offsets from this day on
_IN_UTC: Final = {b"UTC", b"Etc/UTC", b"GMT", b"Z"}
_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_MICROS: Final = 86_400_000_000


def legacy_columns(file: pq.ParquetFile) -> frozenset[str]:
    """The columns that may contain days or times in the legacy calendar, including nested ones."""
    footer = file.metadata.metadata or {}
    days, instants, old_instants = _legacy(footer)
    columns = set()
    for name, leaf in _leaves(file):
        kind = leaf.logical_type.type
        zoned = kind == "TIMESTAMP" and json.loads(leaf.logical_type.to_json())["isAdjustedToUTC"]
        old = old_instants if leaf.physical_type == "INT96" else instants and zoned
        if old or (days and kind == "DATE"):
            columns.add(name)
    return frozenset(columns)


def with_instants(file: pq.ParquetFile) -> pa.Schema:
    """The file's columns. 96-bit times are in UTC, as Spark, Hive and Impala write them."""
    old = {name for name, leaf in _leaves(file) if leaf.physical_type == "INT96"}
    return pa.schema(
        [
            field.with_type(map_leaves(field.type, _in_utc)) if field.name in old else field
            for field in file.schema_arrow
        ]
    )


def _in_utc(type_: pa.DataType) -> pa.DataType:
    return pa.timestamp(type_.unit, "UTC") if pa.types.is_timestamp(type_) else type_


def refuse_legacy(values: pa.Array, column: str, name: str, footer: Mapping[bytes, bytes] | None) -> None:
    """Raise Refused if a value means something else in the calendar of the program that wrote it."""
    first = _GREGORIAN if (footer or {}).get(_ZONE) in _IN_UTC else _STANDARD
    if any(_before(part, _GREGORIAN, first) for part in leaf_values(values)):
        raise Refused(
            "legacy-calendar",
            f"{name}: column `{column}` has days before 15 October 1582, or instants before 1900, in the "
            "calendar of Spark before 3.0 or Hive.",
            "Nothing was written; write the file again with "
            "`spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED` and "
            "`spark.sql.parquet.int96RebaseModeInWrite=CORRECTED`, or pass a DataFrame that Spark reads.",
            [column],
        )


def _legacy(footer: Mapping[bytes, bytes]) -> tuple[bool, bool, bool]:
    """Three flags: whether the writer used the legacy calendar for days, for times, and for 96-bit times."""
    if _VERSION in footer:
        version = tuple(int(part) for part in footer[_VERSION].split(b".")[:2] if part.isdigit())
        times = version < (3, 0) or b"org.apache.spark.legacyDateTime" in footer
        return times, times, version < (3, 1) or b"org.apache.spark.legacyINT96" in footer
    days = footer.get(b"writer.date.proleptic") == b"false"  # a property that Hive writes
    instants = footer.get(b"writer.zone.conversion.legacy") == b"true"
    return days, days or instants, days or instants


def _leaves(file: pq.ParquetFile) -> Iterator[tuple[str, pq.ColumnSchema]]:
    """Each Parquet leaf column with the name of its column. Both have the order of Arrow's fields."""
    names = (field.name for field in file.schema_arrow for _ in leaf_types(field.type))
    return zip(names, map(file.metadata.schema.column, range(file.metadata.num_columns)), strict=False)


def _before(values: pa.Array, day: int, instant: int) -> bool:
    """Whether any value is a day before `day`, or a time before the start of the day `instant`."""
    t = pa.types
    if t.is_date(values.type):
        return bool(pc.any(pc.less(values.cast(pa.date32()).cast(pa.int32()), day)).as_py())
    if t.is_timestamp(values.type):
        counts = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
        return bool(pc.any(pc.less(counts, instant * _MICROS)).as_py())
    return False


def parquet_rows(
    path: Path,
    name: str,
    options: ParquetOptions,
    schema: pa.Schema | None,
    dataset_types: DeclaredFields = UNDECLARED,
) -> ProducedRows:
    """The file's rows, with the declared columns by name, or else with all columns in table types.

    Raises Refused for a file that is not Parquet, and for a missing column. Raises Refused for a column whose
    type has no exact conversion to the declared type. Errors in single values are raised when their batch is
    read.
    """
    stored = _stored_schema(path, name, None if schema is None else schema.names)
    refuse_repeated(name, stored.names)
    if schema is None:
        schema = pa.schema(
            [_target_field(field, name, dataset_types, naive=options.naive) for field in stored]
        )
    else:
        _refuse_others(stored, schema, name, strict=options.strict)
    return ProducedRows(_all_optional(schema), _batches(path, name, schema))


# A variant in the text form of a Parquet schema, which alone shows it.
_VARIANT: Final = re.compile(r"group field_id=-?\d+ (.*) \(Variant\(\d+\)\) \{$", re.MULTILINE)


def _variants(file: pq.ParquetFile) -> list[str]:
    """The names of the columns, or fields of structs, that are variants."""
    return _VARIANT.findall(str(file.schema))


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. 96-bit times are in microseconds, because nanoseconds end in the year 2262."""
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def _stored_schema(path: Path, name: str, wanted: Collection[str] | None) -> pa.Schema:
    """The Arrow schema of a file. Raises Refused for variants among the wanted columns, by default all."""
    try:
        with open_parquet(path) as file:
            variants = [each for each in _variants(file) if wanted is None or each in wanted]
            if variants:  # to Arrow, they are structs of encoded bytes
                raise Refused(
                    "unsupported-type",
                    f"{name}: column `{variants[0]}` is of type VARIANT, which files cannot deliver.",
                    "Write it as text with JSON, or deliver a frame that Spark reads.",
                    variants,
                )
            return with_instants(file)
    except (pa.ArrowException, OSError) as stop:
        if isinstance(stop, FileNotFoundError | PermissionError):
            raise
        raise malformed_row(name, "", "it is not Parquet") from None


def _target_field(field: pa.Field, name: str, declared: DeclaredFields, *, naive: bool) -> pa.Field:
    """The declared column if values may be cast to it, or else an optional column of a table type.

    Raises Refused if no table type fits.
    """
    target = declared.get(field.name)
    if target is not None and can_become(field.type, target):
        return target
    type_ = plain_type(field.type, naive=naive)
    if type_ is None:
        remedy = "Declare a `schema` in `read` without the column."
        if pa.types.is_time(field.type) or pa.types.is_duration(field.type):
            declare = "Time" if pa.types.is_time(field.type) else "Duration"
            remedy = f"Declare it in a `schema` in `read` as {declare}, a number of its unit."
        raise Refused(
            "unsupported-type",
            f"{name}: column `{field.name}` is of type {field.type}, which tables cannot hold.",
            remedy,
            [field.name],
        )
    return pa.field(field.name, type_)


def _all_optional(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(all_optional(field.type)) for field in schema])


def _refuse_others(stored: pa.Schema, schema: pa.Schema, name: str, *, strict: bool) -> None:
    require_columns(name, schema.names, stored.names, strict=strict)
    for field in schema:
        theirs = stored.field(field.name).type
        if not can_become(theirs, field):
            raise Refused(
                "incompatible-type",
                f"{name}: column `{field.name}` is of type {theirs}, but is declared as {type_name(field)}.",
                f"{FIX_FILE}, or `schema` in the manifest.",
                [field.name],
            )


def _row_after(done: int, place: int) -> str:
    return f"row {done + place + 1}"


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
            columns = []
            for field in schema:
                values, convert = batch.column(field.name), partial(cast_exactly, field=field)
                if field.name in legacy:
                    refuse_legacy(values, field.name, name, footer)
                row = partial(_row_after, done)
                columns.append(typed_or_refused(values, field, convert, name, row))
            yield pa.RecordBatch.from_arrays(columns, schema=_all_optional(schema))
            done += batch.num_rows


_FIRST, _END = (date.min - _EPOCH).days, (date.max - _EPOCH).days + 1
_CODECS_OF_ENGINES = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"}
_DAYS = {"DATE": 1, "TIMESTAMP": timedelta(days=1) // timedelta(microseconds=1)}


def plain_parquet(path: Path, schema: pa.Schema | None, dataset_types: DeclaredFields = UNDECLARED) -> bool:
    """Whether an engine can read the file directly, because no value needs a check.

    All columns must have table types, distinct names and compression codecs that engines read. No column may
    contain 96-bit times, or days or times that may be in the legacy calendar. The file's statistics must show
    that all days and times are in the years 0001 to 9999. Columns must match the schema in order, or the
    dataset's types if there is no schema. No column may need a check of NULLs, ranges or lengths.
    """
    try:
        with open_parquet(path) as file:
            stored, metadata = file.schema_arrow, file.metadata
            checked = [*legacy_columns(file), *_variants(file)]
    except (pa.ArrowException, OSError):
        return False
    if len(set(stored.names)) != len(stored.names) or not all(_as_it_is(field.type) for field in stored):
        return False
    if checked or not _within_years(metadata) or not _codecs(metadata) <= _CODECS_OF_ENGINES:
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
