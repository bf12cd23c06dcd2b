"""The rows of files as a source: of their own columns, in the types that the table has for them."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.native.source import Reading, Source
from backstory.engine.staging import (
    STAGED,
    copied_whole,
    is_local,
    local_fields,
    local_parquet,
    parquet_tables,
    stage_rows,
)
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
from backstory.model.change import NOTHING
from backstory.model.types import ColumnType
from backstory.stores.iceberg.store import Store, StoredTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Loads the table that the rows are for; None if there is none yet.
Stored: TypeAlias = Callable[[], StoredTable | None]


@contextmanager
def rows_of_files(
    store: Store,
    source: SourceFiles,
    stored: Stored,
    rename: Mapping[str, str],
    retype: Mapping[str, ColumnType] = NOTHING,
    written: FileOptions = AS_EXPECTED,
    *,
    unmodified: Callable[[StoredTable | None], str | None] | None = None,
) -> Iterator[Source]:
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
    with ExitStack() as held, as_files_of_a_user():
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="backstory-native-")))
        files = [unpacked(file, folder) for file in source.files]
        options = reader_options(source, files, written)
        if isinstance(options, CsvOptions) and unmodified is not None:
            options = replace(options, unmodified=unmodified(table))
        if isinstance(options, JsonOptions):
            options = replace(options, keeps=unmodified is not None)
        if isinstance(options, ParquetOptions) and is_local(store) and len(files) == 1:
            path = files[0].path
            if plain_parquet(path, None, known):
                told = pq.read_schema(path)
                parquet = partial(_whole_parquet, store, path, files[0].stamp, folder)
                read = _read_parquet(path, frozenset(), files[0].stamp)
                yield Source(local_fields(told), parquet, _size(path), read)
                return
        schema, with_commas = columns_as_written(files, options, written, known)
        batches = chain.from_iterable(
            rows_of(file.path, file.name, options, schema).batches for file in files
        )
        rows = replace(staged_rows(store, schema, batches, folder, held), with_commas=with_commas)
        require_unchanged(file.stamp for file in files)
        yield rows


def staged_rows(
    store: Store, schema: pa.Schema, batches: Iterator[pa.RecordBatch], folder: Path, held: ExitStack
) -> Source:
    """Rows that a reader gives, laid down in the folder as a Parquet file."""
    fields, frame = stage_rows(store, ProducedRows(schema, batches), folder, held)
    path = folder / STAGED
    if not path.exists():
        return Source(fields, frame)
    empty = frozenset(each.name for each in schema if pa.types.is_null(each.type))
    return Source(fields, frame, _size(path), _read_parquet(path, empty, stamp_of(path)))


def _whole_parquet(store: Store, path: Path, stamp: Stamp, folder: Path) -> "DataFrame":
    """The rows of a file for Spark, out of a copy: its tasks read when they please, and not at once."""
    whole = copied_whole(path, stamp, folder)
    return local_parquet(store, whole, pq.read_schema(whole))


def _read_parquet(path: Path, empty: Collection[str], stamp: Stamp) -> Reading:
    """Reads columns of a file as it was stamped; those that are `empty` have no type of their own."""

    def read(names: Sequence[str]) -> Iterator[pa.Table]:
        for rows in while_unchanged(parquet_tables(path, names), stamp):
            values = [pa.nulls(len(rows)) if name in empty else rows[name] for name in names]
            yield pa.table(values, names=names)

    return read


def _size(path: Path) -> int:
    told = pq.read_metadata(path)
    return unpacked_size(told.num_rows, told.num_columns, path.stat().st_size)


def _stored_fields(table: StoredTable | None, rename: Mapping[str, str], *, nested: bool) -> Known:
    """The columns that the table already has, `nested` ones if asked, as fields under their new names."""
    columns = () if table is None else table.shape.user_columns
    types = {rename.get(each.name, each.name): each.type for each in columns if nested or each.type.flat}
    return {name: pa.field(name, arrow_type(type_)) for name, type_ in types.items()}
