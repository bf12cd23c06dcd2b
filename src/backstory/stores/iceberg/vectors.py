"""Mark stored rows as deleted: deletion vectors, or position delete files before format version 3."""

import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.stores.iceberg.data_files import upload
from backstory.stores.iceberg.faults import conflict
from backstory.stores.iceberg.store import Store, StoredTable

# How Iceberg frames the bitmap in a deletion vector (its table specification, Puffin blob types).
MAGIC = bytes.fromhex("d1d33964")
VECTORS_SINCE = 3
POSITION_DELETES = "POSITION_DELETES"

Positions = Mapping[str, BitMap64]


@dataclass(frozen=True, slots=True)
class Deletions:
    """Iceberg's objects for new delete files and for those they take the place of."""

    added: list[Any]
    replaced: list[Any]


def positions_by_file(removed: pa.Table) -> dict[str, BitMap64]:
    """For each `_file` its positions `_pos`."""
    if not removed.num_rows:
        return {}
    encoded = removed["_file"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    positions = removed["_pos"].to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return {
        file: BitMap64(positions[bounds[place] : bounds[place + 1]])
        for place, file in enumerate(encoded.dictionary.to_pylist())
    }


def write_deletions(store: Store, table: StoredTable, positions: Positions) -> Deletions:
    """Delete files that hide the rows at these positions, and older ones that they absorb."""
    if not positions:
        return Deletions([], [])
    tasks = _tasks(table, positions)
    if table.format_version < VECTORS_SINCE:
        return Deletions(_write_position_deletes(store, table, positions, tasks), [])
    return _write_vectors(store, table, positions, tasks)


def _tasks(table: StoredTable, positions: Positions) -> dict[str, Any]:
    """Iceberg's scan tasks of the files, which know a file's partition and its deletion vector."""
    found: dict[str, Any] = {}
    tasks = table.iceberg.newScan().planFiles()
    try:
        iterator = tasks.iterator()
        while iterator.hasNext() and len(found) < len(positions):
            task = iterator.next()
            location = task.file().location()
            if location in positions:
                found[location] = task
    finally:
        tasks.close()
    if len(found) < len(positions):
        # The rows were read from a newer table than the one that was loaded.
        raise conflict(table.shape.table)
    return found


def _write_vectors(
    store: Store, table: StoredTable, positions: Positions, tasks: Mapping[str, Any]
) -> Deletions:
    iceberg = store.jvm.org.apache.iceberg
    previous = store.jvm.java.util.HashMap()
    for file, task in tasks.items():
        older = [each for each in task.deletes() if each.content().toString() == POSITION_DELETES]
        if older:
            previous.put(file, _load(store, table, older, file))
    factory = iceberg.io.OutputFileFactory.builderFor(table.iceberg, 0, 0)
    factory = factory.format(iceberg.FileFormat.PUFFIN).build()
    functions = store.jvm.com.google.common.base.Functions
    writer = iceberg.deletes.BaseDVFileWriter(factory, functions.forMap(previous, None))
    for file, marked in positions.items():
        task = tasks[file]
        index = _index(store, task, file, marked)
        writer.delete(file, index, task.spec(), task.file().partition())
    writer.close()
    result = writer.result()
    return Deletions(list(result.deleteFiles()), list(result.rewrittenDeleteFiles()))


def _load(store: Store, table: StoredTable, older: Sequence[Any], file: str) -> Any:
    """What a vector hides already, or the position delete files of format version 2 hide together.

    Equality deletes are not among them: they go on to hide rows of the files that are older than they.
    """
    java = store.jvm.java.util
    inputs, deletes = java.HashMap(), java.ArrayList()
    for each in older:
        inputs.put(each, table.iceberg.io().newInputFile(each.location()))
        deletes.add(each)
    functions = store.jvm.com.google.common.base.Functions
    loader = store.jvm.org.apache.iceberg.data.BaseDeleteLoader(functions.forMap(inputs))
    return loader.loadPositionDeletes(deletes, file)


def _index(store: Store, task: Any, file: str, marked: BitMap64) -> Any:
    """The positions as Iceberg's own object: made from bytes, for one call a file instead of a row."""
    bitmap = MAGIC + marked.serialize()
    framed = struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))
    iceberg = store.jvm.org.apache.iceberg
    described = (
        iceberg.FileMetadata.deleteFileBuilder(task.spec())
        .ofPositionDeletes()
        .withFormat("puffin")
        .withPath(file)
        .withFileSizeInBytes(len(framed))
        .withPartition(task.file().partition())
        .withRecordCount(len(marked))
        .withReferencedDataFile(file)
        .withContentOffset(0)
        .withContentSizeInBytes(len(framed))
        .build()
    )
    return iceberg.deletes.PositionDeleteIndex.deserialize(framed, described)


PATH_FIELD, POSITION_FIELD = 2147483546, 2147483545
_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_FIELD)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_FIELD)}),
    ]
)


def _write_position_deletes(
    store: Store, table: StoredTable, positions: Positions, tasks: Mapping[str, Any]
) -> list[Any]:
    """One position delete file for each data file, which keeps it in that file's partition."""
    iceberg, written = store.jvm.org.apache.iceberg, []
    config = iceberg.MetricsConfig.forPositionDelete()
    for file, marked in positions.items():
        task = tasks[file]
        rows = pa.table([[file] * len(marked), list(marked)], schema=_DELETES)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", store_schema=False)
        content = sink.getvalue()
        location = table.iceberg.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.parquet")
        upload(table, location, content)
        input_file = table.iceberg.io().newInputFile(location)
        written.append(
            iceberg.FileMetadata.deleteFileBuilder(task.spec())
            .ofPositionDeletes()
            .withFormat("parquet")
            .withPath(location)
            .withFileSizeInBytes(content.size)
            .withPartition(task.file().partition())
            .withMetrics(iceberg.parquet.ParquetUtil.fileMetrics(input_file, config))
            .build()
        )
    return written
