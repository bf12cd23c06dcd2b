"""The rows of a source as a frame: files that the house's readers read, or a table of the warehouse."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backstory.doors.native.files import SourceFile, SourceFiles, unpacked
from backstory.engine.staging import (
    STAGED,
    as_ours,
    is_local,
    local_fields,
    local_parquet,
    parquet_here,
    staged,
)
from backstory.errors import Refused
from backstory.formats.csv.options import CsvOptions
from backstory.formats.csv.rows import csv_columns
from backstory.formats.json.options import JsonOptions
from backstory.formats.json.rows import json_columns
from backstory.formats.memory import MemoryLease, unpacked_size
from backstory.formats.parquet.options import ParquetOptions
from backstory.formats.parquet.plain import plain_parquet
from backstory.formats.produced import UNTOLD, ProducedRows, missing
from backstory.formats.reading import Options, rows_of
from backstory.formats.rows import arrow_type
from backstory.model.change import NOTHING
from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.model.table import TableName
from backstory.model.types import ColumnType
from backstory.reading.frames.point_in_time import current, keeps_all
from backstory.reading.frames.versions import HISTORIES
from backstory.stores.iceberg.frames import frame_of, spark_fields
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.spark_types import spark_schema
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.metadata.hidden import Unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

MEND: Final = "Nothing was written; mend the file, or bring its rows from Python."
Known = Mapping[str, pa.Field]
# Reads columns as far as a lease can hold them.
Reading = Callable[[Sequence[str], MemoryLease], pa.Table | None]


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of a copy; `size` is what they take of the driver's memory, None where only a plan tells.

    `frame` makes a frame of them, of these `fields`; `rows` gives them, in columns of these names, without
    Spark: None where it must read them.
    """

    fields: "StructType"
    frame: "Callable[[], DataFrame]"
    size: int | None = None
    rows: Reading | None = None


def rows_of_frame(frame: "DataFrame", size: int | None = None) -> Source:
    """The rows of a frame."""
    return Source(frame.schema, lambda: frame, size)


def rows_of_table(store: Store, table: TableName) -> Source:
    """What is true now in a table of the warehouse, in the source's columns."""
    from pyspark.sql.types import StructField, StructType

    stored = existing(store, table)
    size = unpacked_size(stored.rows, len(stored.shape.columns), stored.bytes)
    if stored.shape.layout in HISTORIES:
        return rows_of_frame(current(store, table).drop(VALID_FROM, VALID_TO), size)
    if not keeps_all(stored.shape):
        return rows_of_frame(current(store, table), size)
    told = spark_schema(store, stored.iceberg.schema())
    fields = [
        StructField(each.source, told[each.name].dataType, metadata=told[each.name].metadata)
        for each in stored.shape.user_columns
    ]
    return Source(
        StructType(fields), partial(current, store, table), size, partial(_read_table, store, stored)
    )


def _read_table(
    store: Store, stored: StoredTable, names: Sequence[str], lease: MemoryLease
) -> pa.Table | None:
    """The rows of a table all of whose rows are true."""
    called = {each.source: each.name for each in stored.shape.user_columns}
    try:
        return LocalRows(store, stored, lease).read([called[name] for name in names]).rename_columns(names)
    except Unreadable:
        return None


def rows_of_arrow(store: Store, rows: pa.Table) -> Source:
    """The rows of an Arrow table."""
    size = max(1, rows.nbytes)

    def here(names: Sequence[str], lease: MemoryLease) -> pa.Table:
        lease.hold("copy", size)
        return rows.select(names)

    bare = rows.replace_schema_metadata()
    return Source(spark_fields(bare.schema), partial(frame_of, store, bare), size, here)


@contextmanager
def rows_of_files(
    store: Store,
    source: SourceFiles,
    into: TableName,
    rename: Mapping[str, str],
    retype: Mapping[str, ColumnType] = NOTHING,
) -> Iterator[Source]:
    """The rows of files, of one format, while it lasts; columns of `into` keep its types where they may.

    `rename` are new names of its columns, `retype` types that the copy's are read in. Whatever is malformed
    is refused with its line before Spark begins.
    """
    known = {
        **_known(store, into, rename),
        **{name: pa.field(name, arrow_type(type_)) for name, type_ in retype.items()},
    }
    with ExitStack() as held, _as_files_of_a_user():
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="backstory-native-")))
        files = [unpacked(file, folder) for file in source.files]
        options = _options(source, files)
        if isinstance(options, ParquetOptions) and is_local(store) and len(files) == 1:
            path = files[0].path
            if plain_parquet(path, None, known):
                ours, told = as_ours(path, folder), pq.read_schema(path)
                parquet = partial(local_parquet, store, ours, told)
                yield Source(
                    local_fields(told), parquet, _size(path), partial(_read_parquet, path, frozenset())
                )
                return
        schema = _columns(files, options, known)
        batches = chain.from_iterable(
            rows_of(file.path, file.name, options, schema).batches for file in files
        )
        fields, frame = staged(store, ProducedRows(schema, batches), folder, held)
        path = folder / STAGED
        if not path.exists():
            yield Source(fields, frame)
            return
        empty = frozenset(each.name for each in schema if pa.types.is_null(each.type))
        yield Source(fields, frame, _size(path), partial(_read_parquet, path, empty))


def _read_parquet(path: Path, empty: Collection[str], names: Sequence[str], lease: MemoryLease) -> pa.Table:
    """Columns of a file; those that are `empty` have no type of their own."""
    rows = parquet_here(path, lease, names)
    return pa.table([pa.nulls(len(rows)) if name in empty else rows[name] for name in names], names=names)


def _size(path: Path) -> int:
    told = pq.read_metadata(path)
    return unpacked_size(told.num_rows, told.num_columns, path.stat().st_size)


@contextmanager
def _as_files_of_a_user() -> Iterator[None]:
    """Refusals of readers advise what a manifest could say; here is none."""
    try:
        yield
    except Refused as refused:
        if "`read`" in refused.remedy or "manifest" in refused.remedy or "preprocess" in refused.remedy:
            raise Refused(refused.code, refused.message, MEND, refused.keys) from None
        raise


def _options(source: SourceFiles, files: Sequence[SourceFile]) -> Options:
    if source.format == "csv":
        return CsvOptions(infer=True)
    if source.format == "parquet":
        return ParquetOptions(naive=True)
    return JsonOptions(lines=source.format == "jsonl" or not all(_is_array(file.path) for file in files))


def _is_array(path: Path) -> bool:
    """Whether JSON is one array of rows, and not a row a line."""
    with path.open("rb") as file:
        return file.read(1 << 12).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _known(store: Store, into: TableName, rename: Mapping[str, str]) -> Known:
    """The flat columns that the table has already, under their new names."""
    table = load(store, into)
    columns = () if table is None else table.shape.user_columns
    types = {rename.get(each.name, each.name): each.type for each in columns if each.type.flat}
    return {name: pa.field(name, arrow_type(type_)) for name, type_ in types.items()}


def columns_between(source: SourceFiles, known: Known = UNTOLD) -> pa.Schema:
    """The columns that unpacked files have between them, in the first one's order; nothing else is read.

    Columns that are `known` keep their types where their values may be of them.
    """
    return _columns(source.files, _options(source, source.files), known)


def _columns(files: Sequence[SourceFile], options: Options, known: Known) -> pa.Schema:
    named = [(file.path, file.name) for file in files]
    if isinstance(options, CsvOptions):
        return csv_columns(named, options, known)
    if isinstance(options, JsonOptions):
        found = json_columns(named, options, known)
        return pa.schema([pa.field(each.name, _told(each, known)) for each in found])
    schemas = [(file.name, rows_of(file.path, file.name, options, None).schema) for file in files]
    first, whole = schemas[0]
    for name, other in schemas[1:]:
        whole = _wider(whole, other, f"{first} and {name}", name)
    return whole


def _told(field: pa.Field, known: Known) -> pa.DataType:
    """The type that the table has for a column of JSON, where texts may be its days and instants."""
    wanted = known[field.name].type if field.name in known else field.type
    days = pa.types.is_date(wanted) or pa.types.is_timestamp(wanted)
    return wanted if pa.types.is_string(field.type) and days else field.type


def _wider(one: pa.Schema, other: pa.Schema, names: str, name: str) -> pa.Schema:
    """The columns of two files in types that hold both; Refused by name where there is none."""
    for here, there in ((one, other), (other, one)):
        if lacking := [column for column in here.names if column not in there.names]:
            raise missing(name, lacking[0], list(there.names))
    fields = []
    for field in one:
        theirs = other.field(field.name).type
        type_ = _common(field.type, theirs)
        if type_ is None:
            raise Refused(
                "type-changed",
                f"{field.name} is of type {field.type} and {theirs} in {names}.",
                "Nothing was written; bring the files to one type.",
                [field.name],
            )
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of the two that holds the values of both, if one does."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_decimal(one) and pa.types.is_decimal(other) and one.scale == other.scale:
        return max(one, other, key=lambda each: each.precision)
    families = (pa.types.is_integer, pa.types.is_floating)
    if any(family(one) and family(other) for family in families):
        return max(one, other, key=lambda each: each.bit_width)
    return None
