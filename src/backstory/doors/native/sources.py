"""The rows of a source: Spark and pandas frames, Arrow tables, tables of the warehouse, and files."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.native.evolution import refuse_names
from backstory.engine.staging import (
    STAGED,
    copy_whole,
    is_local,
    local_fields,
    local_parquet,
    parquet_tables,
    stage_rows,
    storable_schema,
)
from backstory.errors import Refused
from backstory.formats.batch_file import Stamp, require_unchanged, stamp_of, while_unchanged
from backstory.formats.expected import first_unfit, map_entries
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.memory import unpacked_size
from backstory.formats.options import CsvOptions, JsonOptions, ParquetOptions
from backstory.formats.parquet import plain_parquet
from backstory.formats.produced import ProducedRows
from backstory.formats.reading import Known, as_files_of_a_user, open_files
from backstory.formats.rows import arrow_type
from backstory.formats.source_files import SourceFile, SourceFiles
from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.exactly import cast_exactly, plain_type
from backstory.model.change import NOTHING
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import TableName
from backstory.model.types import ColumnType
from backstory.reading.frames import all_are_current, table_in_session
from backstory.reading.questions import HISTORIES
from backstory.spark.versions import frame_fields
from backstory.stores.iceberg.frames import frame_of, spark_fields
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.schema import spark_schema
from backstory.stores.iceberg.slice import LocalRows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, existing
from backstory.stores.iceberg.workers import error_text
from backstory.stores.metadata.searches import IsNull
from backstory.strategies.events.sides import holds_map
from backstory.strategies.values import ranks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

# The number of rows in a batch.
ROWS_AT_ONCE: Final = 1 << 17
# Reads columns in batches, again at each call. Raises Unreadable for values that only Spark can read.
ReadColumns = Callable[[Sequence[str]], Iterable[pa.Table]]

# The first and the last value of each of Spark's types of times that a table holds, in Spark SQL.
_FIRST_AND_LAST: Final = {
    "date": ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    "timestamp": ("TIMESTAMP'0001-01-01T00:00:00Z'", "TIMESTAMP'9999-12-31T23:59:59.999999Z'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ'0001-01-01T00:00:00'", "TIMESTAMP_NTZ'9999-12-31T23:59:59.999999'"),
}
# Loads the target table, or returns None if it does not exist.
LoadTable: TypeAlias = Callable[[], IcebergTable | None]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a source. `size` is their size in the driver's memory, or None if it is unknown.

    `frame` makes a frame with these `fields`. `batches` reads columns by name without Spark, or is None if
    only Spark can read the rows. `with_commas` are columns whose strings are numbers with decimal commas, and
    `images` are the columns with before-images. `instant` is the time of the rows, if the source records it.
    """

    fields: "StructType"
    frame: "Callable[[], DataFrame]"
    size: int | None = None
    batches: ReadColumns | None = None
    with_commas: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    instant: datetime | None = None


def rows_of_frame(frame: "DataFrame", size: int | None = None) -> SourceRows:
    """The rows of a frame, as a source. Reading raises Refused for values that no table holds."""
    return SourceRows(frame_fields(frame), lambda: storable_frame(frame), size)


def storable_frame(frame: "DataFrame") -> "DataFrame":
    """The frame, which raises Refused when Spark reads a value that no table can hold.

    Tables hold neither times outside the years 1 to 9999 nor text that is not UTF-8. Values within structs,
    lists and maps are also checked.
    """
    from pyspark.sql.functions import raise_error, when

    fields = frame_fields(frame)
    if len({name.lower() for name in fields.names}) < len(fields.names):
        return frame  # repeated names are refused later

    def storable(field: "StructField") -> "Column":
        value = rest = column(field.name)
        for is_unfit in (_is_far_time, _is_bad_text):
            holds_unfit = _holds(value, field.dataType, is_unfit)
            if holds_unfit is not None:
                error = error_text(_unstorable(field.name, is_text=is_unfit is _is_bad_text))
                rest = when(holds_unfit, raise_error(error)).otherwise(rest)
        return rest.alias(field.name)

    return frame.select(*map(storable, fields))


# Whether a value of a type is unfit, or None if no value of this type is.
Unfit = Callable[["Column", "DataType"], "Column | None"]


def _holds(value: "Column", type_: "DataType", unfit: Unfit) -> "Column | None":
    """Whether a value is unfit or contains an unfit value, or None if all values of the type are fit."""
    from pyspark.sql.functions import exists, map_keys, map_values
    from pyspark.sql.types import ArrayType, MapType, StructType

    match type_:
        case StructType():
            parts = [_holds(value.getField(part.name), part.dataType, unfit) for part in type_]
        case ArrayType():
            item_type = type_.elementType
            if _holds(value, item_type, unfit) is None:
                return None
            return exists(value, lambda item: cast("Column", _holds(item, item_type, unfit)))
        case MapType():
            keys, items = ArrayType(type_.keyType), ArrayType(type_.valueType)
            parts = [_holds(map_keys(value), keys, unfit), _holds(map_values(value), items, unfit)]
        case _:
            return unfit(value, type_)
    conditions = [part for part in parts if part is not None]
    return reduce(or_, conditions) if conditions else None


def _is_far_time(value: "Column", type_: "DataType") -> "Column | None":
    from pyspark.sql.functions import expr

    bounds = _FIRST_AND_LAST.get(type_.typeName())
    return None if bounds is None else ~value.between(*map(expr, bounds))


def _is_bad_text(value: "Column", type_: "DataType") -> "Column | None":
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StringType

    if not isinstance(type_, StringType):
        return None
    if hasattr(sf, "is_valid_utf8"):
        return ~sf.is_valid_utf8(value)
    return sf.encode(value, "UTF-8") != value.cast("binary")  # Spark 3.5 replaces such bytes


def rows_of_table(store: IcebergStore, table: TableName) -> SourceRows:
    """The current rows of a table of the warehouse, with the source's column names."""
    from pyspark.sql.types import StructField, StructType

    stored = existing(store, table)
    size = unpacked_size(stored.rows, len(stored.shape.columns), stored.bytes)
    in_files = stored.shape.layout is Layout.VERSIONS  # `valid_to` decides which rows are current
    if stored.shape.layout in HISTORIES and not in_files:
        return rows_of_frame(_current(store, table), size)
    if not in_files and not all_are_current(stored.shape):
        return rows_of_frame(table_in_session(store, table).rows_at(), size)
    schema = spark_schema(stored.fields)
    fields = [
        StructField(column.source, schema[column.name].dataType, metadata=schema[column.name].metadata)
        for column in stored.shape.user_columns
    ]
    return SourceRows(
        StructType(fields),
        lambda: storable_frame(_current(store, table)),
        size,
        partial(_read_table, store, stored),
    )


def _current(store: IcebergStore, table: TableName) -> "DataFrame":
    return table_in_session(store, table).rows_at().drop(VALID_FROM, VALID_TO)


def _read_table(store: IcebergStore, stored: IcebergTable, names: Sequence[str]) -> Iterator[pa.Table]:
    """The current rows of a table: rows without an end, or all rows if the layout has no ends."""
    names_by_source = {column.source: column.name for column in stored.shape.user_columns}
    wanted = [names_by_source[name] for name in names]
    with store.memory.lease() as lease:
        here = LocalRows(store, stored, lease)
        open_ = [{VALID_TO: IsNull()}] if stored.shape.layout is Layout.VERSIONS else []
        for rows in here.batches(wanted, searches=open_):
            _refuse_unfit(named := rows.rename_columns(names))
            yield named


def rows_of_arrow(store: IcebergStore, rows: pa.Table) -> SourceRows:
    """The rows of an Arrow table, as a source."""
    bare = rows.replace_schema_metadata()

    def batches(names: Sequence[str]) -> Iterable[pa.Table]:
        few = bare.select(names)
        few = few.cast(pa.schema(map(_storable_within, few.schema)))
        return [few.slice(first, ROWS_AT_ONCE) for first in range(0, len(few), ROWS_AT_ONCE)]

    return SourceRows(spark_fields(bare.schema), partial(frame_of, store, bare), max(1, rows.nbytes), batches)


def _storable_within(field: pa.Field) -> pa.Field:
    """The field with strings for the unknown parts of its type. A wholly unknown type is unchanged."""
    if pa.types.is_null(field.type) or not pa.types.is_nested(field.type):
        return field
    return storable_schema(pa.schema([field])).field(0)


def arrow_of_pandas(frame: Any) -> pa.Table:
    """A pandas frame as an Arrow table, without its index.

    Raises Refused for repeated names, for columns that Arrow cannot convert, for columns with several kinds
    of times, or with texts and bytes, which Arrow would convert to one kind, and for sets.
    """
    refuse_names(list(map(str, frame.columns)))
    try:
        rows = pa.Table.from_pandas(frame, preserve_index=False)
    except _UNREADABLE as stop:
        raise _first_unreadable(frame) or stop from None
    for place, name in enumerate(rows.column_names):
        values = frame.iloc[:, place]
        if values.dtype == object and _may_mix(rows.schema.field(place).type):
            _refuse_mixed_kinds(name, values)
    return rows


# Errors of Arrow for a pandas column.
_UNREADABLE: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


def _first_unreadable(frame: Any) -> Refused | None:
    """The error for the first column of a pandas frame that Arrow cannot convert, or None."""
    for place, name in enumerate(map(str, frame.columns)):
        try:
            pa.Table.from_pandas(frame.iloc[:, [place]], preserve_index=False)
        except _UNREADABLE as stop:
            why = str(stop.args[-1] if stop.args else stop).rstrip(".")  # the last argument has no value
            return Refused(
                "unreadable-frame",
                f"Arrow cannot convert column {name}: {why}.",
                "Nothing was written; give the column values of one type that Arrow has, or leave it out.",
                [name],
            )
    return None


def _may_mix(type_: pa.DataType) -> bool:
    """Whether Arrow may have converted Python values of several kinds, or sets, to this type."""
    if pa.types.is_nested(type_):
        return True
    return pa.types.is_date(type_) or pa.types.is_timestamp(type_) or pa.types.is_binary(type_)


_SETS: Final = "sets"
_KINDS: Final = ((str, "texts"), ((bytes, bytearray), "bytes"), ((set, frozenset), _SETS))


def _refuse_mixed_kinds(name: str, values: Iterable[Any]) -> None:
    """Raise Refused if Python values in one place of a column have several kinds, or are sets.

    Equal sets have their items in different orders, so they would become different lists.
    """
    kinds: dict[tuple[str, ...], set[str]] = {}
    for place, kind in _kinds_of_values(values, ()):
        if kind == _SETS:
            raise Refused(
                "unreadable-frame",
                f"Column {name} has sets, whose items have no order.",
                "Nothing was written; sort each set into a list, for example with `.map(sorted)`.",
                [name],
            )
        kinds.setdefault(place, set()).add(kind)
    for mixed in kinds.values():
        if len(mixed) > 1:
            example = "`pandas.to_datetime(..., utc=True)`" if "bytes" not in mixed else "`bytes.decode`"
            raise Refused(
                "unreadable-frame",
                f"Column {name} mixes {' and '.join(sorted(mixed))}.",
                f"Nothing was written; give all of its values one kind, for example with {example}.",
                [name],
            )


def _kinds_of_values(values: Iterable[Any], place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The kinds of Python values, each with its place in structs and lists."""
    for value in values:
        match value:
            case Mapping():
                for key, inner in value.items():
                    yield from _kinds_of_values([inner], (*place, str(key)))
            case np.ndarray(dtype=type_) if type_.kind in "biuf":  # numbers
                continue
            case list() | tuple() | np.ndarray():
                yield from _kinds_of_values(value, (*place, ""))
            case _:
                if kind := _kind_of_value(value):
                    yield place, kind


def _kind_of_value(value: Any) -> str | None:
    """The kind of a time, a text, bytes or a set, or None for other values."""
    for types_, kind in _KINDS:
        if isinstance(value, types_):
            return kind
    if not isinstance(value, datetime | np.datetime64):
        return "dates" if isinstance(value, date) else None
    if value != value:  # noqa: PLR0124 - NaT, which has no kind
        return None
    return "times without a zone" if getattr(value, "tzinfo", None) is None else "times with a zone"


def plain_arrow(rows: pa.Table) -> pa.Table:
    """The rows, in types that tables support. Raises Refused for other types and for inexact values."""
    columns = [_plain_column(field, rows.column(place)) for place, field in enumerate(rows.schema)]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _plain_column(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = plain_type(field.type, naive=True)
    if type_ is None:
        raise Refused(
            "unsupported-type",
            f"Column {field.name} has type {field.type}, which no table can store.",
            "Nothing was written; cast it, or leave it out.",
            [field.name],
        )
    ours = pa.field(field.name, type_)
    try:
        chunks = values.chunks
        if type_ != field.type:
            chunks = [cast_exactly(chunk, ours) for chunk in chunks]
    except (pa.ArrowInvalid, UnreadableCell):
        raise Refused(
            "unreadable-value",
            f"The column {field.name} ({field.type}) has a value that {type_} cannot hold exactly.",
            "Nothing was written; fix it at the source.",
            [field.name],
        ) from None
    plain = pa.chunked_array(chunks, type_)
    if any(_repeats_keys(chunk) for chunk in plain.chunks):
        raise Refused(
            "unreadable-value",
            f"The column {field.name} has a map that contains a key more than once.",
            "Nothing was written; fix it at the source.",
            [field.name],
        )
    _refuse_unfit(pa.table([plain], names=[field.name]))
    return plain


def _repeats_keys(values: pa.Array) -> bool:
    """Whether a map, which may be nested in another value, contains a key more than once."""
    if not holds_map(values.type):
        return False
    if pa.types.is_struct(values.type):
        return any(map(_repeats_keys, values.flatten()))
    if not pa.types.is_map(values.type):
        return _repeats_keys(values.flatten())
    entries = map_entries(values)
    keys, items = entries.flatten().flatten()
    maps, codes = np.asarray(entries.value_parent_indices()), ranks(pa.chunked_array([keys]))
    order = np.lexsort([codes, maps])
    is_same = (np.diff(maps[order]) == 0) & (np.diff(codes[order]) == 0)
    return bool(is_same.any()) or _repeats_keys(keys) or _repeats_keys(items)


def _refuse_unfit(rows: pa.Table) -> None:
    """Raise Refused for a value that no table holds."""
    for field in rows.schema:
        for chunk in rows[field.name].chunks:
            if unfit := first_unfit(chunk, field):
                raise _unstorable(field.name, is_text=unfit.is_bad_text)


def _unstorable(name: str, *, is_text: bool) -> Refused:
    """The error for a column with a text or a time that no table holds."""
    if is_text:
        return Refused(
            "unreadable-value",
            f"The column {name} has text that is not UTF-8.",
            "Nothing was written; decode it at the source, or deliver it as bytes.",
            [name],
        )
    return Refused(
        "unreadable-value",
        f"The column {name} has a time outside the years 1 to 9999.",
        "Nothing was written; fix it at the source.",
        [name],
    )


@contextmanager
def rows_of_files(
    store: IcebergStore,
    source: SourceFiles,
    stored: LoadTable,
    rename: Mapping[str, str],
    retype: Mapping[str, ColumnType] = NOTHING,
    written: FileOptions = AS_EXPECTED,
    *,
    unmodified: Callable[[IcebergTable | None], str | None] | None = None,
) -> Iterator[SourceRows]:
    """The rows of files of one format. They can be read until the context ends.

    Columns of the table keep its types if possible. `rename` maps columns to new names, `retype` maps columns
    to new types, and `written` contains the options of the format. If a CSV cell equals the string that
    `unmodified` returns for the table, it is NULL and flagged in an extra column. A column that a row of JSON
    lacks is also NULL and flagged (V138). Malformed input is refused with its line before Spark starts.
    """
    table = stored()
    known = {
        **_stored_fields(table, rename, nested=source.format in {"json", "jsonl"}),
        **{name: pa.field(name, arrow_type(type_)) for name, type_ in retype.items()},
    }
    with ExitStack() as resources, as_files_of_a_user():
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="backstory-native-")))
        files = open_files(source, folder, written)
        if isinstance(files.options, CsvOptions) and unmodified is not None:
            files = replace(files, options=replace(files.options, unmodified=unmodified(table)))
        if isinstance(files.options, JsonOptions):
            files = replace(files, options=replace(files.options, keeps=unmodified is not None))
        if isinstance(files.options, ParquetOptions) and is_local(store) and len(files.files) == 1:
            (file,) = files.files
            if plain_parquet(file.path, None, known):
                yield _rows_of_parquet(store, file, folder)
                return
        schema, with_commas = files.columns(known)
        rows = stage_source(store, schema, files.batches(schema), folder, resources)
        require_unchanged(file.stamp for file in files.files)
        yield replace(rows, with_commas=with_commas)


def stage_source(
    store: IcebergStore,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    folder: Path,
    resources: ExitStack,
) -> SourceRows:
    """The rows of a reader, written to the folder as a Parquet file."""
    fields, frame = stage_rows(store, ProducedRows(schema, batches), folder, resources)
    path = folder / STAGED
    if not path.exists():
        return SourceRows(fields, frame)
    empty = frozenset(field.name for field in schema if pa.types.is_null(field.type))
    return SourceRows(fields, frame, _size_in_memory(path), _read_parquet(path, empty, stamp_of(path)))


def _rows_of_parquet(store: IcebergStore, file: SourceFile, folder: Path) -> SourceRows:
    """The rows of a file that Spark reads without conversion."""

    def frame() -> "DataFrame":
        # The frame reads a copy, because tasks run later, when the file may have changed.
        whole = copy_whole(file.path, file.stamp, folder)
        return storable_frame(local_parquet(store, whole, pq.read_schema(whole)))

    fields = local_fields(pq.read_schema(file.path))
    read = _read_parquet(file.path, frozenset(), file.stamp)
    return SourceRows(fields, frame, _size_in_memory(file.path), read)


def _read_parquet(path: Path, empty: Collection[str], stamp: Stamp) -> ReadColumns:
    """A reader of a file's columns, which checks the file's stamp. `empty` columns get Arrow's null type."""

    def read(names: Sequence[str]) -> Iterator[pa.Table]:
        for rows in while_unchanged(parquet_tables(path, names), stamp):
            _refuse_unfit(rows)
            values = [pa.nulls(len(rows)) if name in empty else rows[name] for name in names]
            yield pa.table(values, names=names)

    return read


def _size_in_memory(path: Path) -> int:
    metadata = pq.read_metadata(path)
    return unpacked_size(metadata.num_rows, metadata.num_columns, path.stat().st_size)


def _stored_fields(table: IcebergTable | None, rename: Mapping[str, str], *, nested: bool) -> Known:
    """The table's columns with their new names, as Arrow fields.

    Nested columns are included if `nested` is true.
    """
    columns = () if table is None else table.shape.user_columns
    types = {
        rename.get(column.name, column.name): column.type for column in columns if nested or column.type.flat
    }
    return {name: pa.field(name, arrow_type(type_)) for name, type_ in types.items()}
