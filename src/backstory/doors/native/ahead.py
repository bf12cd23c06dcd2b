"""What files are refused for whatever the table is, before Java and Spark start."""

import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.native.columns import refuse_lacking_key, refuse_names
from backstory.doors.native.refusals import (
    are_written_alike,
    keys_as_written,
    refuse_duplicates,
    refuse_empty,
    refuse_null_keys,
)
from backstory.doors.native.request import SnapshotRequest
from backstory.formats.csv.source import file_source
from backstory.formats.csv.table import csv_table
from backstory.formats.file_columns import (
    as_files_of_a_user,
    columns_as_written,
    reader_options,
    refuse_whole_headers,
)
from backstory.formats.reading import rows_of
from backstory.formats.source_files import SourceFiles, unpacked
from backstory.strategies.keys import without_key
from backstory.strategies.matching import distinct

# Files of so many bytes together are read whole in a moment; of larger ones only the columns are looked at.
SMALL: Final = 4 << 20


def refuse_ahead(source: SourceFiles, asked: SnapshotRequest) -> None:
    """Raise what `rows_of_files` raises, as far as that needs no table, and for the key that is given."""
    asked.files.refuse_misplaced(source.format)
    with tempfile.TemporaryDirectory(prefix="backstory-ahead-") as folder, as_files_of_a_user():
        if sum(each.path.stat().st_size for each in source.files) > SMALL:
            _refuse_columns(names_in_first_file(source, asked), asked)
            return
        files = [unpacked(each, Path(folder)) for each in source.files]
        options = reader_options(source, files, asked.files)
        schema, _ = columns_as_written(files, options, asked.files)
        names = [asked.rename.get(name, name) for name in schema.names]
        _refuse_columns(names, asked)
        read = (rows_of(each.path, each.name, options, schema).batches for each in files)
        rows = pa.Table.from_batches(chain.from_iterable(read), schema).rename_columns(names)
    _refuse_rows(rows, asked)


def _refuse_columns(names: Sequence[str], asked: SnapshotRequest) -> None:
    refuse_names(names)
    if names:
        refuse_lacking_key(asked.key or (), names)


def _refuse_rows(rows: pa.Table, asked: SnapshotRequest) -> None:
    """A table may have other types than a file seems to: of what depends on them, it is asked."""
    refuse_empty(len(rows), asked)
    key = asked.key
    if not key or not are_written_alike(rows, key):
        return
    lacking = without_key(rows, key)
    refuse_null_keys(len(lacking), key, lambda: keys_as_written(lacking, key))
    refuse_duplicates(keys_as_written(distinct(rows, key)[1], key), key)


def names_in_first_file(source: SourceFiles, asked: SnapshotRequest) -> list[str]:
    """The columns of the first of large files; none where its beginning or end does not show them."""
    first = source.files[0]
    if source.format == "parquet":
        return list(pq.read_schema(first.path).names)
    if source.format != "csv" or first.path.suffix.lower() != ".csv":
        return []
    options = asked.files.csv()
    if asked.files.separator is None:
        refuse_whole_headers([first], options)
    return csv_table(file_source(first.path, first.name, options.encoding), options).names or []
