"""Mark stored rows as deleted: deletion vectors, or position delete files before format version 3."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from backstory.errors import TryAgain
from backstory.model.places import FILE, POSITION
from backstory.stores.framed import framed
from backstory.stores.iceberg.data_files import ending_of, upload
from backstory.stores.iceberg.jvm import position_deletes
from backstory.stores.iceberg.schema import FIELD_ID
from backstory.stores.iceberg.scripts import scan_tasks_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.vector_script import hidden_by_vectors
from backstory.stores.refusals import conflict

VECTORS_SINCE = 3

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
    files = removed[FILE].unify_dictionaries().combine_chunks()
    encoded = files if pa.types.is_dictionary(files.type) else files.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    positions = removed[POSITION].to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    return {
        file: BitMap64(positions[bounds[place] : bounds[place + 1]])
        for place, file in enumerate(encoded.dictionary.to_pylist())
        if bounds[place] < bounds[place + 1]
    }


def write_deletions(store: Store, table: StoredTable, positions: Positions) -> Deletions:
    """Delete files that hide the rows at these positions, and older ones that they absorb."""
    if not positions:
        return Deletions([], [])
    if table.format_version < VECTORS_SINCE:
        return Deletions(_write_position_deletes(store, table, positions), [])
    told = {file: (len(marked), framed(marked)) for file, marked in positions.items()}
    written = hidden_by_vectors(store.jvm, table.iceberg, told)
    if written is None:
        raise _missing_file(table)
    added, replaced = written
    return Deletions(list(added), list(replaced))


def _missing_file(table: StoredTable) -> TryAgain:
    """The error for a data file that is not there: its rows were read from a newer table."""
    return conflict(table.shape.table)


PATH_FIELD, POSITION_FIELD = 2147483546, 2147483545
FILE_PATH, POSITION_IN_FILE = "file_path", "pos"
_DELETES = pa.schema(
    [
        pa.field(FILE_PATH, pa.string(), False, {FIELD_ID: str(PATH_FIELD)}),
        pa.field(POSITION_IN_FILE, pa.int64(), False, {FIELD_ID: str(POSITION_FIELD)}),
    ]
)


def _write_position_deletes(store: Store, table: StoredTable, positions: Positions) -> list[Any]:
    """One position delete file for each data file, which keeps it in that file's partition."""
    tasks = scan_tasks_of(store.jvm, table.iceberg, positions)
    if len(tasks) < len(positions):
        raise _missing_file(table)
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
