"""The rows of a database as a source: copied out once, and read from the copy as often as a plan needs."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from backstory.doors.native.file_rows import Stored, rows_of_files, staged_rows
from backstory.doors.native.jdbc_rows import lay_down, read_by_jdbc, translate_jdbc
from backstory.doors.native.retyping import with_types
from backstory.doors.native.source import Source, rows_of_frame
from backstory.engine.staging import is_local
from backstory.formats.csv.options import CsvOptions
from backstory.formats.file_options import FileOptions
from backstory.formats.reading import rows_of
from backstory.formats.rows import arrow_type
from backstory.formats.source_files import SourceFile, SourceFiles
from backstory.formats.unchanged import stamp_of
from backstory.formats.values.base64_cells import decode_base64
from backstory.model.types import ColumnType
from backstory.sources.databases.address import Database
from backstory.sources.databases.copies import copy_out
from backstory.stores.iceberg.store import Store

# The option of files that a database has, too: types of columns.
_OF_DATABASES: Final = frozenset({"type"})
Reading = Callable[[Path], AbstractContextManager[Source]]


@contextmanager
def rows_of_database(
    store: Store,
    database: Database,
    stored: Stored,
    rename: Mapping[str, str],
    retype: Mapping[str, ColumnType],
    written: FileOptions,
) -> Iterator[Source]:
    """The rows of a table or a query, while it lasts, and the time that they are of; as `rows_of_files`.

    Raises what `copy_out` raises.
    """
    written.refuse_all("a database", _OF_DATABASES)
    types = {**written.type, **retype}

    def of_parquet(path: Path) -> AbstractContextManager[Source]:
        files = SourceFiles([SourceFile(path, database.what, stamp_of(path))], "parquet")
        return rows_of_files(store, files, stored, rename, types)

    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="backstory-database-")))
        if database.kind == "jdbc":
            rows = _by_jdbc(store, database, of_parquet, folder, held)
            yield with_types(rows, written.type)
            return
        copy = copy_out(database, types, folder)
        if copy.types is None:
            rows = with_types(held.enter_context(of_parquet(copy.path)), written.type)
        else:
            schema = pa.schema([(name, arrow_type(type_)) for name, type_ in copy.types.items()])
            file = SourceFile(copy.path, database.what, stamp_of(copy.path))
            rows = staged_rows(store, schema, _batches(file, schema), folder, held)
        yield replace(rows, instant=copy.instant)


def _by_jdbc(store: Store, database: Database, reading: Reading, folder: Path, held: ExitStack) -> Source:
    """The rows as Spark reads them, once: in a file here, else kept by its workers."""
    copy = read_by_jdbc(store, database)
    with translate_jdbc(database, copy.password):
        if is_local(store):
            rows = held.enter_context(reading(lay_down(copy, folder)))
        else:
            rows = rows_of_frame(copy.frame.localCheckpoint())
    return replace(with_types(rows, copy.texts), instant=copy.instant)


def _batches(file: SourceFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a CSV in these columns; bytes are written in base64."""
    encoded = [place for place, each in enumerate(schema) if pa.types.is_binary(each.type)]
    written = schema
    for place in encoded:
        written = written.set(place, schema.field(place).with_type(pa.string()))
    for batch in rows_of(file.path, file.name, CsvOptions(), written).batches:
        columns = list(batch.columns)
        for place in encoded:
            columns[place] = decode_base64(columns[place])
        yield pa.record_batch(columns, schema=schema)
