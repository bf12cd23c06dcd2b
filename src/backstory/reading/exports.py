"""The whole history of a table as one file, CSV or Parquet: written beside its place, and there at once."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from backstory.errors import BackstoryError, TryAgain, UsageError, option
from backstory.formats.values.exactly import loose
from backstory.formats.wrapping.room import FULL
from backstory.model.receipt import Receipt
from backstory.model.table import TableName
from backstory.reading.lives import KNOWN_FROM, KNOWN_TO, TOLD_FROM, TOLD_TO
from backstory.reading.timelines import Axis, require_axis
from backstory.reading.written_rows import CsvRows, ParquetRows

_OWN: Final = {TOLD_FROM: KNOWN_FROM, TOLD_TO: KNOWN_TO}
# Rows are gathered until they make a row group.
_GROUP_ROWS, _GROUP_BYTES = 100_000, 1 << 26


@dataclass(frozen=True, slots=True, repr=False)
class Export(Receipt):
    """A table that was written to a file: how many rows, and on which axis they tell its history."""

    table: str
    file: str
    axis: str
    rows: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a history is written to, and on which axis it is told; UsageError for what cannot be."""

    file: Path
    axis: Axis
    overwrite: bool

    def __post_init__(self) -> None:
        require_axis(self.axis)
        if self.file.suffix.lower() not in {".csv", ".parquet"}:
            raise UsageError(
                "bad-option",
                f"{self.file} ends in neither .csv nor .parquet.",
                "Name a file that ends in .csv or .parquet.",
            )
        folder = self.file.absolute().parent
        if not folder.is_dir():
            raise UsageError("no-file", f"There is no folder {folder}.", "Create it first.")
        if self.file.is_dir():
            raise UsageError("file-exists", f"{self.file} is a folder.", "Name a file.")
        if self.file.exists() and not self.overwrite:
            remedy = f"Name another file, or use {option('overwrite', value=True)} to replace it."
            raise UsageError("file-exists", f"{self.file} already exists.", remedy)

    def write(self, table: TableName, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Export:
        """Write the rows; killed at any moment the file is as it was, or whole."""
        rows, names = 0, shown_names(schema.names)
        shown = pa.schema([(name, loose(each.type)) for name, each in zip(names, schema, strict=True)])
        kind = CsvRows if self.file.suffix.lower() == ".csv" else ParquetRows
        with _beside(self.file) as beside, kind(beside, shown) as sink:
            for group in _groups(batches):
                columns = [each.cast(type_) for each, type_ in zip(group.columns, shown.types, strict=True)]
                sink.write(pa.Table.from_arrays(columns, schema=shown))
                rows += group.num_rows
        return Export(str(table), str(self.file), self.axis, rows)


def shown_names(names: Iterable[str]) -> list[str]:
    """The names under which columns are written; a user's own `known_from` is read as `known_from_src`."""
    names = list(names)
    if TOLD_FROM not in names:
        return names
    return [_OWN.get(name, f"{name}_src" if name in _OWN.values() else name) for name in names]


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered)


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    """A file beside the one that it becomes when the block ends well; else it goes."""
    beside = file.absolute().with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        yield beside
        with beside.open("rb") as whole:
            os.fsync(whole.fileno())
        beside.replace(file)
    except ConnectionError:
        raise  # of Spark's gateway
    except OSError as stop:
        raise _unwritten(stop, file) from None
    finally:
        beside.unlink(missing_ok=True)


def _unwritten(stop: OSError, file: Path) -> BackstoryError:
    if stop.errno in FULL:
        told = f"The disk is full: {file} was not written."
        return TryAgain("disk-full", told, "Make room, or name another place.")
    return UsageError("no-file", f"{file} cannot be written: {stop.strerror}.", "Name another file.")
