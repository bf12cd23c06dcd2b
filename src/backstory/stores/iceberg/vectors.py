"""Mark stored rows as deleted: deletion vectors, or position delete files before format version 3."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.model.places import FILE, POSITION
from backstory.stores.framed import framed
from backstory.stores.iceberg.data_files import ending_of, upload
from backstory.stores.iceberg.jvm import (
    older_positions,
    position_deletes,
    position_index,
    vector_writer,
)
from backstory.stores.iceberg.schema import FIELD_ID
from backstory.stores.iceberg.scripts import planned
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.refusals import conflict

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
    encoded = removed[FILE].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    positions = removed[POSITION].to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return {
        file: BitMap64(positions[bounds[place] : bounds[place + 1]])
        for place, file in enumerate(encoded.dictionary.to_pylist())
    }


def write_deletions(store: Store, table: StoredTable, positions: Positions) -> Deletions:
    """Delete files that hide the rows at these positions, and older ones that they absorb."""
    if not positions:
        return Deletions([], [])
    tasks = _tasks(store, table, positions)
    if table.format_version < VECTORS_SINCE:
        return Deletions(_write_position_deletes(store, table, positions, tasks), [])
    return _write_vectors(store, table, positions, tasks)


def _tasks(store: Store, table: StoredTable, positions: Positions) -> dict[str, Any]:
    """Iceberg's scan tasks of the files, which know a file's partition and its deletion vector."""
    found = planned(store.jvm, table.iceberg, positions)
    if len(found) < len(positions):
        # The rows were read from a newer table than the one that was loaded.
        raise conflict(table.shape.table)
    return found


def _write_vectors(
    store: Store, table: StoredTable, positions: Positions, tasks: Mapping[str, Any]
) -> Deletions:
    previous = {}
    for file, task in tasks.items():
        # Equality deletes are not among them: they go on to hide rows of the files that are older than they.
        older = [each for each in task.deletes() if each.content().toString() == POSITION_DELETES]
        if older:
            previous[file] = older_positions(store.jvm, table.iceberg, older, file)
    writer = vector_writer(store.jvm, table.iceberg, previous)
    for file, marked in positions.items():
        task = tasks[file]
        index = position_index(store.jvm, task, file, framed(marked), len(marked))
        writer.delete(file, index, task.spec(), task.file().partition())
    writer.close()
    result = writer.result()
    return Deletions(list(result.deleteFiles()), list(result.rewrittenDeleteFiles()))


PATH_FIELD, POSITION_FIELD = 2147483546, 2147483545
FILE_PATH, POSITION_IN_FILE = "file_path", "pos"
_DELETES = pa.schema(
    [
        pa.field(FILE_PATH, pa.string(), False, {FIELD_ID: str(PATH_FIELD)}),
        pa.field(POSITION_IN_FILE, pa.int64(), False, {FIELD_ID: str(POSITION_FIELD)}),
    ]
)


def _write_position_deletes(
    store: Store, table: StoredTable, positions: Positions, tasks: Mapping[str, Any]
) -> list[Any]:
    """One position delete file for each data file, which keeps it in that file's partition."""
    written = []
    for file, marked in positions.items():
        rows = pa.table([[file] * len(marked), list(marked)], schema=_DELETES)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", store_schema=False)
        content = sink.getvalue()
        location = table.iceberg.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.parquet")
        upload(table, location, content)
        ending = ending_of(content)
        written.append(position_deletes(store.jvm, tasks[file], location, content.size, ending))
    return written
