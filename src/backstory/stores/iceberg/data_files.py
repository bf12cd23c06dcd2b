"""The writing and deletion of data files and delete files that no snapshot names.

The driver writes rows into Parquet files by partition, as Iceberg's writer would. Deleted rows are hidden by
deletion vectors, or before format version 3 by position delete files.
"""

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.model.instant import EPOCH
from backstory.model.layout import ROW_ID, START
from backstory.spark.connect import Py4JError, Py4JJavaError
from backstory.spark.frame_files import constant_columns
from backstory.spark.versions import rewrites_by_options
from backstory.stores.iceberg.frames import FIELD_IDS, frame_of, keeps_row_ids, without_row_ids
from backstory.stores.iceberg.jvm import data_file, new_location, position_deletes, rewrite_group
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.schema import FIELD_ID
from backstory.stores.iceberg.scripts import scan_tasks_of, write_vectors
from backstory.stores.iceberg.storage import is_inside
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.table_metadata import (
    FILE_PATH,
    PATH_FIELD,
    POSITION_FIELD,
    POSITION_IN_FILE,
    vector_bytes,
)
from backstory.stores.port import conflict
from backstory.stores.table_files import local_path

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
# Strings that are written to a path without escapes.
PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
IDENTITY, YEAR, VOID = "identity", "year", "void"


def rows_by_partition(table: IcebergTable, rows: pa.Table) -> list[tuple[str, pa.Table]] | None:
    """The rows by partition of a table, or None if the driver cannot compute the partitions.

    A partition is a path in Iceberg's format, which is empty if the table has no partitions. The driver
    computes partitions by the year of an instant, by booleans, and by strings that a path need not escape,
    other than the word for NULL.
    """
    if all(transform == VOID for _, transform, _ in table.partitioning):
        return [("", rows)]
    values = [_partition_values(rows, source, transform) for _, transform, source in table.partitioning]
    known = [column for column in values if column is not None]
    if len(known) < len(values):
        return None
    names = [name for name, _, _ in table.partitioning]
    combined = pa.table(known, names=names)
    parts = []
    combinations = combined.group_by(names).aggregate([]).to_pylist()
    if len(combinations) == 1:
        return [(_partition_path(combinations[0]), rows)]
    for combination in combinations:
        members = None
        for name, value in combination.items():
            same = combined[name].is_null() if value is None else pc.equal(combined[name], value)
            members = same if members is None else pc.and_(members, same)
        parts.append((_partition_path(combination), rows.filter(pc.fill_null(members, False))))
    return parts


def _partition_values(rows: pa.Table, source: str | None, transform: str) -> pa.ChunkedArray | None:
    """The value of a partition field for each row, as Iceberg parses it, or None if it is not supported."""
    if source not in rows.column_names:
        return None
    values = rows[source]
    if transform == YEAR and pa.types.is_timestamp(values.type):
        return pc.subtract(pc.year(values), EPOCH.year)
    if transform == IDENTITY and pa.types.is_boolean(values.type):
        return values
    if transform == IDENTITY and pa.types.is_string(values.type):
        words = pc.unique(values).drop_null().to_pylist()
        return values if all(PLAIN.fullmatch(word) and word != NULL_PARTITION for word in words) else None
    return None


def _partition_path(values: Mapping[str, object]) -> str:
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    return "/".join(f"{name}={NULL_PARTITION if text is None else text}" for name, text in texts.items())


# With this option Iceberg's writer registers its files for a later commit.
REWRITE_OPTION = "rewritten-file-scan-task-set-id"
# Without this option Iceberg's writer sorts rows by partition and by the table's order.
OWN_ORDER, DISTRIBUTION = "use-table-distribution-and-ordering", "write.distribution-mode"
ROWS_IN_FILE = 500_000
ROWS_IN_GROUP = 1 << 15
THREADS = 2
CHUNK = 1 << 22


def write_rows(store: IcebergStore, table: IcebergTable, rows: pa.Table) -> list[Any]:
    """Iceberg's objects for new data files with these rows, sorted by key.

    Rows that have a `_row_id` keep it. The driver writes the files if it can compute the partitions.
    Otherwise Spark writes them.
    """
    if not rows.num_rows:
        return []
    has_ids = ROW_ID in rows.column_names and rows[ROW_ID].null_count < rows.num_rows
    if not (has_ids and keeps_row_ids(table)):
        rows = without_row_ids(rows)
    rows = _sort_rows(rows, _sort_columns(table, rows.column_names))
    parts = rows_by_partition(table, rows)
    if parts is None:
        return write_frame(store, table, frame_of(store, rows))
    schema = _with_field_ids(table, rows.schema)
    pieces = [  # here, because the pool's threads have no JVM
        (new_location(store.jvm, table.iceberg, partition), partition, part.slice(first, ROWS_IN_FILE))
        for partition, part in parts
        for first in range(0, part.num_rows, ROWS_IN_FILE)
    ]
    on_disk = _is_on_disk(table, pieces[0][0])

    def write(piece: tuple[str, str, pa.Table]) -> tuple[str, int, bytes, str]:
        location, partition, part = piece
        path = _create_file(location) if on_disk else None
        return location, *_write_file(table, location, path, part.cast(schema)), partition

    with ExitStack() as undo:
        undo.callback(lambda: delete_files(table.iceberg, [location for location, _, _ in pieces]))
        with ThreadPoolExecutor(THREADS) as pool:
            written = list(pool.map(write, pieces))
        files = [data_file(store.jvm, table.iceberg, *file) for file in written]
        undo.pop_all()
    return files


def delete_files(iceberg: Any, locations: Iterable[str], folder: str | None = None) -> list[str]:
    """Delete files that no snapshot names. Returns the files that remain as orphans.

    Every deletion of files uses this function. `folder` is the table's folder, by default its location. A
    file outside of this folder remains, because a copy of the table in another folder may read it.
    """
    left = []
    for location in locations:
        folder = folder or str(iceberg.location())
        try:
            if is_inside(location, folder):
                iceberg.io().deleteFile(location)
            else:
                left.append(location)
        except Py4JJavaError:
            left.append(location)
    return left


def write_frame(store: IcebergStore, table: IcebergTable, frame: Any) -> list[Any]:
    """Iceberg's objects for new data files with a frame's rows, written by Spark's tasks without a commit.

    Writes the table's columns. Also writes `_row_id` and the sequence number of the last update, if the frame
    has these columns. Iceberg uses the same writer for rewritten rows.
    """
    lineage_columns = FIELD_IDS if keeps_row_ids(table) else ()
    lineage = [name for name in lineage_columns if name in frame.columns]
    names = [field["name"] for field in table.fields]
    frame = frame.select(*map(quote, [*names, *lineage]))
    with rewrite_group(store.jvm, table.iceberg) as (group, written):
        options = {}
        if rewrites_by_options():  # the table then has both columns of lineage; NULL means no value
            options[REWRITE_OPTION] = group
            frame = frame.selectExpr(
                "*", *(f"CAST(NULL AS BIGINT) AS {name}" for name in lineage_columns if name not in lineage)
            )
        if _has_one_partition(table, frame):
            options[OWN_ORDER] = "false"
            constant = constant_columns(frame)  # Spark sorts by one number faster than by two
            by = [name for name in _sort_columns(table, names) if name not in constant]
            frame = frame.sortWithinPartitions(*map(quote, by)) if by else frame
        frame.write.format("iceberg").mode("append").options(**options).save(group)
        return written()


def _sort_columns(table: IcebergTable, names: Collection[str]) -> list[str]:
    """The columns by which rows are sorted in files: the key, and the start of versions."""
    key = table.shape.key if table.shape.layout.is_sorted else ()
    return [name for name in (*key, START) if name in names]


def _has_one_partition(table: IcebergTable, frame: Any) -> bool:
    """Whether all rows of a frame are in one partition, so that tasks only need to sort them by key.

    Otherwise, Iceberg's writer sorts by partition first. This takes Spark far longer than a sort by number.
    """
    if not table.shape.layout.is_sorted or table.properties.get(DISTRIBUTION) != "none":
        return False
    return {source for _, _, source in table.partitioning} <= constant_columns(frame)


def _sort_rows(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """The rows, sorted by these columns. They are unchanged if the first column's values strictly ascend."""
    values = rows[by[0]] if by else None
    if values is None or (values.null_count == 0 and pc.all(pc.less(values[:-1], values[1:])).as_py()):
        return rows
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in by]))


def _with_field_ids(table: IcebergTable, schema: pa.Schema) -> pa.Schema:
    """The schema with the field ids of columns and their parts, which Iceberg uses to find them in files."""
    numbered = {field["name"]: field for field in table.fields}
    numbered |= {name: {"id": id_, "type": "long"} for name, id_ in FIELD_IDS.items() if name not in numbered}
    return pa.schema([_with_field_id(field, numbered[field.name]) for field in schema])


def _with_field_id(field: pa.Field, numbered: Mapping[str, Any]) -> pa.Field:
    """The field with its id and its parts' ids, from the JSON of the same field in Iceberg's schema."""
    type_, json = field.type, numbered["type"]
    if pa.types.is_struct(type_):
        parts = {part["name"]: part for part in json["fields"]}
        inner = [type_.field(place) for place in range(type_.num_fields)]
        type_ = pa.struct([_with_field_id(part, parts[part.name]) for part in inner])
    elif pa.types.is_map(type_):
        key = _with_field_id(type_.key_field, {"id": json["key-id"], "type": json["key"]})
        value = _with_field_id(type_.item_field, {"id": json["value-id"], "type": json["value"]})
        type_ = pa.map_(key, value)
    elif pa.types.is_list(type_):
        element = {"id": json["element-id"], "type": json["element"]}
        type_ = pa.list_(_with_field_id(type_.value_field, element))
    return pa.field(field.name, type_, field.nullable, {FIELD_ID: str(numbered["id"])})


def _write_file(table: IcebergTable, location: str, local: Path | None, rows: pa.Table) -> tuple[int, bytes]:
    """Write a file to the local disk, or through the table's FileIO if `local` is None.

    Returns the file's size and its Parquet footer.
    """
    # In other columns a dictionary costs time and space in every group.
    sample = rows.slice(0, ROWS_IN_GROUP)
    repeating = [
        path for name in rows.column_names for path in _repeating_leaves(name, sample[name].combine_chunks())
    ]
    sink: Any = pa.BufferOutputStream() if local is None else pa.OSFile(str(local), "wb")
    with (
        sink,
        pq.ParquetWriter(
            sink,
            rows.schema,
            compression="zstd",
            use_dictionary=repeating,
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
        return content.size, footer_of(content)
    with pa.memory_map(str(local)) as file:
        return file.size(), footer_of(file.read_buffer())


def _repeating_leaves(path: str, values: pa.Array) -> Iterator[str]:
    """Parquet's names for the leaves of a column whose values occur at least twice on average."""
    if pa.types.is_struct(values.type):
        parts = [(part.name, inner) for part, inner in zip(values.type, values.flatten(), strict=True)]
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


def footer_of(content: pa.Buffer) -> bytes:
    """The footer of a Parquet file. The file ends with the footer, the footer's length, and a mark."""
    end = content.size - 8
    length = int.from_bytes(content.slice(end, 4).to_pybytes(), "little")
    return content.slice(end - length, length).to_pybytes()


def _is_on_disk(table: IcebergTable, location: str) -> bool:
    """Whether the table's FileIO writes this location to a disk of this machine.

    A path without a scheme may be in HDFS, in Java's memory, or in any default file system of Hadoop.
    """
    try:
        system = table.iceberg.io().newInputFile(location).getFileSystem()
    except Py4JError:  # a storage outside of Hadoop's file systems
        return False
    return str(system.getUri().getScheme()) == "file"


def _create_file(location: str) -> Path | None:
    """Create an empty file on this machine's disk. Returns its path, or None for a location elsewhere."""
    path = local_path(location)
    if not path.is_absolute():
        return None
    path.touch(_create_folder(path.parent) & 0o666)
    return path


def _create_folder(folder: Path) -> int:
    """Create a missing folder with the mode of its parent. Returns its mode."""
    if not folder.is_dir():
        folder.mkdir(_create_folder(folder.parent), exist_ok=True)
    return folder.stat().st_mode & 0o777


def upload(table: IcebergTable, location: str, content: pa.Buffer) -> None:
    """Write a file through the table's FileIO."""
    output = table.iceberg.io().newOutputFile(location).create()
    try:
        for first in range(0, content.size, CHUNK):
            output.write(content.slice(first, min(CHUNK, content.size - first)).to_pybytes())
    finally:
        output.close()


VECTORS_SINCE = 3

Positions = Mapping[str, BitMap64]


class Deletions(NamedTuple):
    """Iceberg's objects for new delete files, and for the delete files that they replace."""

    added: Sequence[Any] = ()
    replaced: Sequence[Any] = ()


def write_deletions(store: IcebergStore, table: IcebergTable, positions: Positions) -> Deletions:
    """Write delete files for the rows at these positions. New vectors replace older delete files."""
    if not positions:
        return Deletions()
    if table.format_version < VECTORS_SINCE:
        return Deletions(_write_position_deletes(store, table, positions))
    vectors = {file: (len(deleted), vector_bytes(deleted)) for file, deleted in positions.items()}
    written = write_vectors(store.jvm, table.iceberg, vectors)
    if written is None:
        raise conflict(table.shape.table)  # a data file is gone: rows were read from a newer state
    return Deletions(*map(list, written))


_DELETES = pa.schema(
    [
        pa.field(FILE_PATH, pa.string(), False, {FIELD_ID: str(PATH_FIELD)}),
        pa.field(POSITION_IN_FILE, pa.int64(), False, {FIELD_ID: str(POSITION_FIELD)}),
    ]
)


def _write_position_deletes(store: IcebergStore, table: IcebergTable, positions: Positions) -> list[Any]:
    """Write a position delete file for each data file, in that file's partition."""
    tasks = scan_tasks_of(store.jvm, table.iceberg, positions)
    if len(tasks) < len(positions):
        raise conflict(table.shape.table)
    written = []
    for file, deleted in positions.items():
        rows = pa.table([[file] * len(deleted), list(deleted)], schema=_DELETES)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", store_schema=False)
        content = sink.getvalue()
        location = table.iceberg.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.parquet")
        upload(table, location, content)
        footer = footer_of(content)
        written.append(position_deletes(store.jvm, tasks[file], location, content.size, footer))
    return written
