"""What files are refused for whatever the table is, before Java and Spark start."""

import tempfile
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from backstory.doors.native.asked import SnapshotRequest
from backstory.doors.native.columns import refuse_lacking_key, refuse_names
from backstory.formats.csv.source import file_source
from backstory.formats.csv.table import csv_table
from backstory.formats.file_columns import (
    as_files_of_a_user,
    columns_as_written,
    reader_options,
    refuse_whole_headers,
)
from backstory.formats.reading import rows_of
from backstory.formats.source_files import SourceFile, SourceFiles, unpacked

# Files of so many bytes together are read whole in a moment; of larger ones only the columns are looked at.
SMALL: Final = 4 << 20


def refuse_ahead(source: SourceFiles, asked: SnapshotRequest) -> None:
    """Raise what `rows_of_files` raises, as far as that needs no table, and for the key that is given."""
    asked.files.refuse_misplaced(source.format)
    with tempfile.TemporaryDirectory(prefix="backstory-ahead-") as folder, as_files_of_a_user():
        if sum(each.path.stat().st_size for each in source.files) <= SMALL:
            names = _read(source, [unpacked(each, Path(folder)) for each in source.files], asked)
        else:
            names = _named(source, asked)
    refuse_names(names)
    if names:
        refuse_lacking_key(asked.key or (), names)


def _read(source: SourceFiles, files: list[SourceFile], asked: SnapshotRequest) -> list[str]:
    """The columns of files that are read whole; cells of declared types, too."""
    options = reader_options(source, files, asked.files)
    schema, _ = columns_as_written(files, options, asked.files)
    for each in files if asked.files.type else ():
        for _ in rows_of(each.path, each.name, options, schema).batches:
            pass
    return list(schema.names)


def _named(source: SourceFiles, asked: SnapshotRequest) -> list[str]:
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
