"""The rows of a source: a frame, an Arrow table, or a table of the warehouse.

Arrow tables and pandas frames of callers, in columns of the types that tables have.

The rows of files as a source: of their own columns, in the types that the table has for them.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.engine.staging import (
    STAGED,
    copy_whole,
    is_local,
    local_fields,
    local_parquet,
    parquet_tables,
    stage_rows,
)
from backstory.errors import Refused
from backstory.formats.csv.options import CsvOptions
from backstory.formats.file_columns import (
    Known,
    as_files_of_a_user,
    columns_as_written,
    reader_options,
)
from backstory.formats.file_options import AS_EXPECTED, FileOptions
from backstory.formats.json.options import JsonOptions
from backstory.formats.memory import unpacked_size
from backstory.formats.parquet.options import ParquetOptions
from backstory.formats.parquet.plain import plain_parquet
from backstory.formats.produced import ProducedRows
from backstory.formats.reading import rows_of
from backstory.formats.rows import arrow_type
from backstory.formats.source_files import SourceFiles, unpacked
from backstory.formats.unchanged import Stamp, require_unchanged, stamp_of, while_unchanged
from backstory.formats.values.cells import UnreadableCell
from backstory.formats.values.exactly import exactly, plain_type
from backstory.model.change import NOTHING
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.table import TableName
from backstory.model.types import ColumnType
from backstory.reading.frames.point_in_time import all_are_current, current
from backstory.reading.frames.versions import HISTORIES
from backstory.spark.versions import frame_fields
from backstory.stores.iceberg.frames import frame_of, spark_fields
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.search_bounds import is_null
from backstory.stores.iceberg.spark_types import spark_schema
from backstory.stores.iceberg.store import Store, StoredTable, existing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# Rows that are read or taken together.
ROWS_AT_ONCE: Final = 1 << 17
# Reads columns, some rows at a time, each time anew; raises Unreadable for what Spark must read.
ReadColumns = Callable[[Sequence[str]], Iterable[pa.Table]]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The rows of a copy; `size` is what they take of the driver's memory, None where only a plan tells.

    `frame` makes a frame of them, of these `fields`; `batches` gives them, in columns of these names, without
    Spark: None where it must read them. `with_commas` are texts that are numbers with decimal commas,
    `images` the columns of images of what was before; `instant` is the time that the rows are of, where the
    source tells it.
    """

    fields: "StructType"
    frame: "Callable[[], DataFrame]"
    size: int | None = None
    batches: ReadColumns | None = None
    with_commas: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    instant: datetime | None = None


def rows_of_frame(frame: "DataFrame", size: int | None = None) -> SourceRows:
    """The rows of a frame."""
    return SourceRows(frame_fields(frame), lambda: frame, size)


def rows_of_table(store: Store, table: TableName) -> SourceRows:
    """What is true now in a table of the warehouse, in the source's columns."""
    from pyspark.sql.types import StructField, StructType

    stored = existing(store, table)
    size = unpacked_size(stored.rows, len(stored.shape.columns), stored.bytes)
    in_files = stored.shape.layout is Layout.VERSIONS  # whose rows alone say whether they are true now
    if stored.shape.layout in HISTORIES and not in_files:
        return rows_of_frame(_current(store, table), size)
    if not in_files and not all_are_current(stored.shape):
        return rows_of_frame(current(store, table), size)
    schema = spark_schema(store, stored.iceberg.schema())
    fields = [
        StructField(column.source, schema[column.name].dataType, metadata=schema[column.name].metadata)
        for column in stored.shape.user_columns
    ]
    return SourceRows(
        StructType(fields), partial(_current, store, table), size, partial(_read_table, store, stored)
    )


def _current(store: Store, table: TableName) -> "DataFrame":
    return current(store, table).drop(VALID_FROM, VALID_TO)


def _read_table(store: Store, stored: StoredTable, names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a table that are true now: those without an end, or all where no row says so."""
    names_by_source = {column.source: column.name for column in stored.shape.user_columns}
    wanted = [names_by_source[name] for name in names]
    with store.memory.lease() as lease:
        here = LocalRows(store, stored, lease)
        if stored.shape.layout is Layout.VERSIONS:
            read = here.batches(wanted, [VALID_TO], _is_open, where=is_null(VALID_TO))
        else:
            read = here.batches(wanted)
        for rows in read:
            yield rows.rename_columns(names)


def _is_open(rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_null(rows[VALID_TO])


def rows_of_arrow(store: Store, rows: pa.Table) -> SourceRows:
    """The rows of an Arrow table."""
    bare = rows.replace_schema_metadata()

    def batches(names: Sequence[str]) -> Iterable[pa.Table]:
        few = bare.select(names)
        return [few.slice(first, ROWS_AT_ONCE) for first in range(0, len(few), ROWS_AT_ONCE)]

    return SourceRows(spark_fields(bare.schema), partial(frame_of, store, bare), max(1, rows.nbytes), batches)


def arrow_of_pandas(frame: Any) -> pa.Table:
    """The rows of a pandas frame without its index; Refused for columns that Arrow makes none of."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as stop:
        why = str(stop.args[-1] if stop.args else stop).rstrip(".")  # behind the value stands the column
        raise Refused(
            "unreadable-frame", f"{why}.", "Nothing was written; give each column values of one type."
        ) from None


def plain_arrow(rows: pa.Table) -> pa.Table:
    """The rows with each column of a type of ours; Refused for one that no table has."""
    columns = [_plain_column(field, rows.column(place)) for place, field in enumerate(rows.schema)]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _plain_column(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = plain_type(field.type, naive=True)
    if type_ is None:
        raise Refused(
            "unsupported-type",
            f"{field.name} is of type {field.type}, which no table can store.",
            "Nothing was written; cast it, or leave it out.",
            [field.name],
        )
    if type_ == field.type:
        return values
    try:
        ours = pa.field(field.name, type_)
        return pa.chunked_array([exactly(chunk, ours) for chunk in values.chunks], type_)
    except (pa.ArrowInvalid, UnreadableCell):
        raise Refused(
            "unreadable-value",
            f"The column {field.name} ({field.type}) has a value that {type_} cannot hold exactly.",
            "Nothing was written; fix it at the source.",
            [field.name],
        ) from None


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Loads the table that the rows are for; None if there is none yet.
LoadTable: TypeAlias = Callable[[], StoredTable | None]


@contextmanager
def rows_of_files(
    store: Store,
    source: SourceFiles,
    stored: LoadTable,
    rename: Mapping[str, str],
    retype: Mapping[str, ColumnType] = NOTHING,
    written: FileOptions = AS_EXPECTED,
    *,
    unmodified: Callable[[StoredTable | None], str | None] | None = None,
) -> Iterator[SourceRows]:
    """The rows of files, of one format, while it lasts; columns of the table keep its types if possible.

    `rename` are new names of its columns, `retype` types that the copy's are read in, `written` says how the
    files are written. Cells of a CSV that are the text which `unmodified` gives for the table are NULL, and
    a column beside says so, as of columns that a row of JSON does not have (V138). Whatever is malformed is
    refused with its line before Spark begins.
    """
    written.refuse_misplaced(source.format)  # before Java is started for the table
    table = stored()
    known = {
        **_stored_fields(table, rename, nested=source.format in {"json", "jsonl"}),
        **{name: pa.field(name, arrow_type(type_)) for name, type_ in retype.items()},
    }
    with ExitStack() as resources, as_files_of_a_user():
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="backstory-native-")))
        files = [unpacked(file, folder) for file in source.files]
        options = reader_options(source, files, written)
        if isinstance(options, CsvOptions) and unmodified is not None:
            options = replace(options, unmodified=unmodified(table))
        if isinstance(options, JsonOptions):
            options = replace(options, keeps=unmodified is not None)
        if isinstance(options, ParquetOptions) and is_local(store) and len(files) == 1:
            path = files[0].path
            if plain_parquet(path, None, known):
                schema_read = pq.read_schema(path)
                parquet = partial(_whole_parquet, store, path, files[0].stamp, folder)
                read = _read_parquet(path, frozenset(), files[0].stamp)
                yield SourceRows(local_fields(schema_read), parquet, _size_in_memory(path), read)
                return
        schema, with_commas = columns_as_written(files, options, written, known)
        batches = chain.from_iterable(
            rows_of(file.path, file.name, options, schema).batches for file in files
        )
        rows = replace(stage_source(store, schema, batches, folder, resources), with_commas=with_commas)
        require_unchanged(file.stamp for file in files)
        yield rows


def stage_source(
    store: Store, schema: pa.Schema, batches: Iterator[pa.RecordBatch], folder: Path, resources: ExitStack
) -> SourceRows:
    """Rows that a reader gives, laid down in the folder as a Parquet file."""
    fields, frame = stage_rows(store, ProducedRows(schema, batches), folder, resources)
    path = folder / STAGED
    if not path.exists():
        return SourceRows(fields, frame)
    empty = frozenset(field.name for field in schema if pa.types.is_null(field.type))
    return SourceRows(fields, frame, _size_in_memory(path), _read_parquet(path, empty, stamp_of(path)))


def _whole_parquet(store: Store, path: Path, stamp: Stamp, folder: Path) -> "DataFrame":
    """The rows of a file for Spark, out of a copy: its tasks read when they please, and not at once."""
    whole = copy_whole(path, stamp, folder)
    return local_parquet(store, whole, pq.read_schema(whole))


def _read_parquet(path: Path, empty: Collection[str], stamp: Stamp) -> ReadColumns:
    """Reads columns of a file as it was stamped; those that are `empty` have no type of their own."""

    def read(names: Sequence[str]) -> Iterator[pa.Table]:
        for rows in while_unchanged(parquet_tables(path, names), stamp):
            values = [pa.nulls(len(rows)) if name in empty else rows[name] for name in names]
            yield pa.table(values, names=names)

    return read


def _size_in_memory(path: Path) -> int:
    metadata = pq.read_metadata(path)
    return unpacked_size(metadata.num_rows, metadata.num_columns, path.stat().st_size)


def _stored_fields(table: StoredTable | None, rename: Mapping[str, str], *, nested: bool) -> Known:
    """The columns that the table already has, `nested` ones if asked, as fields under their new names."""
    columns = () if table is None else table.shape.user_columns
    types = {
        rename.get(column.name, column.name): column.type for column in columns if nested or column.type.flat
    }
    return {name: pa.field(name, arrow_type(type_)) for name, type_ in types.items()}
