"""Checks of files, before Java and Spark start, for the faults that can be found without the table."""

import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.native.evolution import refuse_lacking_key, refuse_names
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.refusals import (
    are_written_alike,
    keys_as_written,
    refuse_duplicates,
    refuse_empty,
    refuse_null_keys,
)
from backstory.doors.native.whole_rows import names_whole_row
from backstory.formats.csv.row_blocks import file_source
from backstory.formats.csv.table import csv_table
from backstory.formats.reading import (
    as_files_of_a_user,
    columns_as_written,
    reader_options,
    refuse_whole_headers,
    rows_of,
)
from backstory.formats.source_files import SourceFiles, unpack
from backstory.strategies.keys import without_key
from backstory.strategies.matching import distinct

# Up to this many bytes in total, files are checked whole. Otherwise only their columns are checked.
SMALL: Final = 4 << 20


def refuse_files(source: SourceFiles, request: SnapshotRequest) -> None:
    """Raise the errors of `rows_of_files` that do not depend on the table, for the given key."""
    request.files.refuse_misplaced(source.format)
    with tempfile.TemporaryDirectory(prefix="backstory-checks-") as folder, as_files_of_a_user():
        if sum(file.path.stat().st_size for file in source.files) > SMALL:
            _refuse_columns(names_in_first_file(source, request), request)
            return
        files = [unpack(file, Path(folder)) for file in source.files]
        options = reader_options(source, files, request.files)
        schema, _ = columns_as_written(files, options, request.files)
        names = [request.rename.get(name, name) for name in schema.names]
        _refuse_columns(names, request)
        read = (rows_of(file.path, file.name, options, schema).batches for file in files)
        rows = pa.Table.from_batches(chain.from_iterable(read), schema).rename_columns(names)
    _refuse_rows(rows, request)


def _refuse_columns(names: Sequence[str], request: SnapshotRequest) -> None:
    refuse_names(names)
    if names_whole_row(request.key, names):
        return
    if names:
        refuse_lacking_key(request.key or (), names)


def _refuse_rows(rows: pa.Table, request: SnapshotRequest) -> None:
    """Raise Refused for faulty rows. Key types whose strings depend on the table are not checked."""
    refuse_empty(len(rows), request)
    key = request.key
    if not key or names_whole_row(key, rows.column_names) or not are_written_alike(rows, key):
        return
    lacking = without_key(rows, key)
    refuse_null_keys(len(lacking), key, lambda: keys_as_written(lacking, key))
    refuse_duplicates(keys_as_written(distinct(rows, key)[1], key), key)


def names_in_first_file(source: SourceFiles, request: SnapshotRequest) -> list[str]:
    """The columns of the first file, without reading it whole. Empty if its format does not allow that."""
    first = source.files[0]
    if source.format == "parquet":
        return list(pq.read_schema(first.path).names)
    if source.format != "csv" or first.path.suffix.lower() != ".csv":
        return []
    options = request.files.csv()
    if request.files.separator is None:
        refuse_whole_headers([first], options)
    return csv_table(file_source(first.path, first.name, options.encoding), options).names or []
