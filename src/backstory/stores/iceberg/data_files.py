"""Write rows into data files that no snapshot names yet."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backstory.model.layout import START
from backstory.model.places import ROW_ID
from backstory.spark.versions import rewrites_by_options
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.jvm import data_file, rewriting
from backstory.stores.iceberg.lineage import FIELD_IDS, keeps_row_ids, without_row_ids
from backstory.stores.iceberg.literals import quoted
from backstory.stores.iceberg.partitions import rows_by_partition
from backstory.stores.iceberg.places import lies_in
from backstory.stores.iceberg.schema import FIELD_ID, fields_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.openings import local

# The option by which Iceberg's writer leaves what it wrote to whoever commits it.
REWRITE_OPTION = "rewritten-file-scan-task-set-id"
ROWS_IN_FILE = 500_000
ROWS_IN_GROUP = 1 << 15
THREADS = 2
CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file beside the table: where, how large, its ending, and its partition as Iceberg spells it."""

    location: str
    size: int
    ending: bytes
    partition: str


def write_rows(store: Store, table: StoredTable, rows: pa.Table) -> list[Any]:
    """Iceberg's objects for new data files with these rows, sorted by key.

    Rows that have a `_row_id` keep it. The driver writes the files where it can name the partition of
    a row; rows of a table that somebody partitioned in another way go through Spark's writer.
    """
    if not rows.num_rows:
        return []
    rows = _with_ids(table, rows)
    sorted_by = table.shape.key if table.shape.layout.sorted else ()
    by = [(name, "ascending") for name in sorted_by if name in rows.column_names]
    if START in rows.column_names:
        by.append((START, "ascending"))
    rows = _sorted(rows, by)
    parts = rows_by_partition(table.iceberg, rows)
    if parts is None:
        return write_frame(store, table, frame_of(store, rows))
    schema = _with_field_ids(store, table, rows.schema)
    locations = table.iceberg.locationProvider()  # asked here: the pool's threads know no JVM
    pieces = [
        (locations.newDataLocation(f"{each.folder}/{uuid.uuid4()}.parquet".lstrip("/")), each.told, piece)
        for each, part in parts
        for piece in _pieces(part)
    ]

    here = _is_on_disk(table, pieces[0][0])

    def write(piece: tuple[str, str, pa.Table]) -> WrittenFile:
        location, partition, part = piece
        path = _create_file(location) if here else None
        return _write(table, location, path, partition, part.cast(schema))

    with ExitStack() as undo:
        undo.callback(lambda: delete_files(table.iceberg, [location for location, _, _ in pieces]))
        with ThreadPoolExecutor(THREADS) as pool:
            written = list(pool.map(write, pieces))
        files = [
            data_file(store.jvm, table.iceberg, each.location, each.size, each.ending, each.partition)
            for each in written
        ]
        undo.pop_all()
    return files


def delete_files(iceberg: Any, locations: Iterable[str], folder: str | None = None) -> list[str]:
    """Delete files that no snapshot names; those that could not be deleted, which are left as orphans.

    All deletion is here. A file outside of the table's `folder`, by default its location, is left, whoever
    wrote it: a copy of the table in another folder may read it.
    """
    from py4j.protocol import Py4JJavaError

    left = []
    for location in locations:
        folder = folder or str(iceberg.location())
        try:
            if lies_in(location, folder):
                iceberg.io().deleteFile(location)
            else:
                left.append(location)
        except Py4JJavaError:
            left.append(location)
    return left


def write_frame(store: Store, table: StoredTable, frame: Any) -> list[Any]:
    """The same for a Spark DataFrame, written by Spark's tasks and committed by nobody yet.

    Of the frame's columns those of the table are written, and `_row_id` and the number of a row's last
    update if it has them: the writer is the one with which Iceberg itself moves rows.
    """
    kept = FIELD_IDS if keeps_row_ids(table) else ()
    lineage = [name for name in kept if name in frame.columns]
    names = [field["name"] for field in fields_of(store.jvm, table.iceberg.schema())]
    frame = frame.select(*map(quoted, [*names, *lineage]))
    with rewriting(store.jvm, table.iceberg) as (group, written):
        options = {}
        if rewrites_by_options():  # the table then has both columns of lineage; NULL is none
            options[REWRITE_OPTION] = group
            frame = frame.selectExpr(
                "*", *(f"CAST(NULL AS BIGINT) AS {each}" for each in kept if each not in lineage)
            )
        frame.write.format("iceberg").mode("append").options(**options).save(group)
        return written()


def _with_ids(table: StoredTable, rows: pa.Table) -> pa.Table:
    """The rows as they are written: without ids if there are none, or if the table has none."""
    given = ROW_ID in rows.column_names and rows[ROW_ID].null_count < rows.num_rows
    if given and keeps_row_ids(table):
        return rows
    return without_row_ids(rows)


def _sorted(rows: pa.Table, by: Sequence[tuple[str, str]]) -> pa.Table:
    if not by or _ascends(rows[by[0][0]]):
        return rows
    return rows.take(pc.sort_indices(rows, sort_keys=by))


def _ascends(values: pa.ChunkedArray) -> bool:
    """Whether each value is greater than the one before it, as keys of a delivery in order are."""
    return values.null_count == 0 and bool(pc.all(pc.less(values[:-1], values[1:])).as_py())


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows of one partition, in files of a bounded size."""
    for first in range(0, rows.num_rows, ROWS_IN_FILE):
        yield rows.slice(first, ROWS_IN_FILE)


def _with_field_ids(store: Store, table: StoredTable, schema: pa.Schema) -> pa.Schema:
    """The schema with the field ids by which Iceberg finds columns, and parts of nested ones, in files."""
    numbered = {field["name"]: field for field in fields_of(store.jvm, table.iceberg.schema())}
    numbered |= {name: {"id": id_, "type": "long"} for name, id_ in FIELD_IDS.items() if name not in numbered}
    return pa.schema([_with_field_id(each, numbered[each.name]) for each in schema])


def _with_field_id(field: pa.Field, numbered: Mapping[str, Any]) -> pa.Field:
    """The field with its id and those of its parts, from the same field in the JSON of Iceberg's schema."""
    type_, json = field.type, numbered["type"]
    if pa.types.is_struct(type_):
        parts = {each["name"]: each for each in json["fields"]}
        inner = [type_.field(place) for place in range(type_.num_fields)]
        type_ = pa.struct([_with_field_id(each, parts[each.name]) for each in inner])
    elif pa.types.is_map(type_):
        key = _with_field_id(type_.key_field, {"id": json["key-id"], "type": json["key"]})
        value = _with_field_id(type_.item_field, {"id": json["value-id"], "type": json["value"]})
        type_ = pa.map_(key, value)
    elif pa.types.is_list(type_):
        element = {"id": json["element-id"], "type": json["element"]}
        type_ = pa.list_(_with_field_id(type_.value_field, element))
    return pa.field(field.name, type_, field.nullable, {FIELD_ID: str(numbered["id"])})


def _write(
    table: StoredTable, location: str, local: Path | None, partition: str, rows: pa.Table
) -> WrittenFile:
    """Write a file to this machine's disk, or through the table's own file system where it has no path."""
    sink: Any = pa.BufferOutputStream() if local is None else pa.OSFile(str(local), "wb")
    with (
        sink,
        pq.ParquetWriter(
            sink,
            rows.schema,
            compression="zstd",
            use_dictionary=[*_repeating(rows.slice(0, ROWS_IN_GROUP))],
            store_schema=False,
            store_decimal_as_integer=True,
        ) as writer,
    ):
        writer.write_table(rows, row_group_size=ROWS_IN_GROUP)
        if local is None:
            writer.close()
            content = sink.getvalue()
    if local is None:
        upload(table, location, content)
        return WrittenFile(location, content.size, ending_of(content), partition)
    with pa.memory_map(str(local)) as file:
        return WrittenFile(location, file.size(), ending_of(file.read_buffer()), partition)


def _repeating(rows: pa.Table) -> Iterator[str]:
    """The columns whose values repeat: of others a dictionary costs time and space, in every group."""
    for name, values in zip(rows.column_names, rows.columns, strict=True):
        yield from _repeating_leaves(name, values.combine_chunks())


def _repeating_leaves(path: str, values: pa.Array) -> Iterator[str]:
    """What Parquet calls the parts of a column whose values repeat."""
    if pa.types.is_struct(values.type):
        parts = [(each.name, inner) for each, inner in zip(values.type, values.flatten(), strict=True)]
    elif pa.types.is_map(values.type):
        parts = [("key_value.key", values.keys), ("key_value.value", values.items)]
    elif pa.types.is_list(values.type):
        parts = [("list.element", values.flatten())]
    else:
        if 2 * len(pc.unique(values)) <= len(values):
            yield path
        return
    for name, inner in parts:
        yield from _repeating_leaves(f"{path}.{name}", inner)


def ending_of(content: pa.Buffer) -> bytes:
    """What a Parquet file tells of itself: it ends with that, the length of it, and a mark."""
    end = content.size - 8
    length = int.from_bytes(content.slice(end, 4).to_pybytes(), "little")
    return content.slice(end - length, length).to_pybytes()


def _is_on_disk(table: StoredTable, location: str) -> bool:
    """Whether the table's own file system writes there to the disk of this machine.

    A path without a scheme may be one of HDFS, of Java's memory, or of whatever Hadoop is set to.
    """
    from py4j.protocol import Py4JError

    try:
        system = table.iceberg.io().newInputFile(location).getFileSystem()
    except Py4JError:  # a storage that is none of Hadoop's
        return False
    return str(system.getUri().getScheme()) == "file"


def _create_file(location: str) -> Path | None:
    """Create an empty file on this machine's disk; its path, or None for a location elsewhere."""
    path = _path(location)
    if path is not None:
        path.touch(_create_folder(path.parent) & 0o666)
    return path


def _path(location: str) -> Path | None:
    found = local(location)
    return found if found.is_absolute() else None


def _create_folder(folder: Path) -> int:
    """Create a folder that is missing, with the mode of the one above it; its mode."""
    if not folder.is_dir():
        folder.mkdir(_create_folder(folder.parent), exist_ok=True)
    return folder.stat().st_mode & 0o777


def upload(table: StoredTable, location: str, content: pa.Buffer) -> None:
    """Write a file through the table's own file system."""
    output = table.iceberg.io().newOutputFile(location).create()
    try:
        for first in range(0, content.size, CHUNK):
            output.write(content.slice(first, min(CHUNK, content.size - first)).to_pybytes())
    finally:
        output.close()


def download(table: StoredTable, location: str, offset: int, length: int) -> bytes:
    """A piece of a file, read here where it opens, else through the table's own file system."""
    with suppress(OSError):  # Java says what is wrong with one that cannot be read
        return table.files.read(location, offset, length)
    opened = table.iceberg.io().newInputFile(location).newStream()
    try:
        opened.seek(offset)
        return bytes(opened.readNBytes(length))
    finally:
        opened.close()
