"""The events of a log whose files are on this machine: of all records, or of the delivered keys."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.odf.log_columns import LogColumns
from backstory.doors.odf.manifest.merge import OBSERVED
from backstory.formats.memory import MemoryLease
from backstory.formats.rows import arrow_type
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.strategies.events.sides import OP, PLACE, TIME, data_names
from backstory.strategies.events.terms import LETTERS, EventEncoding


def logged_tables(
    store: Store,
    table: StoredTable,
    columns: LogColumns,
    schema: pa.Schema,
    keys: pa.Table | None,
    lease: MemoryLease,
) -> Iterator[pa.Table]:
    """The log as a side of these columns, some rows at a time; with `keys` not many more than theirs.

    Raises Unreadable for what cannot be read exactly here.
    """
    vocab, data = columns.vocab, data_names(schema)
    told = {EventEncoding.OP: [vocab.operation_type_column], EventEncoding.OBSERVED: [OBSERVED]}
    told_by = told[columns.encoding] if columns.encoding else []
    names = [vocab.offset_column, columns.time, *told_by, *data]
    here = LocalRows(store, table, lease)
    for rows in here.batches(names, among=_values_of_keys(table, keys)):
        own = {OP: _ops(columns, rows, told_by), TIME: rows[columns.time], PLACE: rows[vocab.offset_column]}
        values = [own[name] if name in own else rows[name] for name in schema.names]
        yield pa.table(values, names=schema.names).cast(schema)


def _values_of_keys(table: StoredTable, keys: pa.Table | None) -> dict[str, pa.Array]:
    """The values of the keys by their columns, as far as the table has these in the same types."""
    types = {each.name: arrow_type(each.type) for each in table.shape.columns}
    keys = pa.table({}) if keys is None else keys
    return {name: pc.unique(keys[name]) for name in keys.column_names if types.get(name) == keys[name].type}


def _ops(columns: LogColumns, rows: pa.Table, told_by: list[str]) -> pa.ChunkedArray:
    """What each event does, as its number."""
    if not told_by:
        return pa.chunked_array([np.zeros(len(rows), np.int32)])
    told = rows[told_by[0]]
    if columns.encoding is EventEncoding.OP:
        return told
    numbers = pa.array([int(op) for op in LETTERS], pa.int32())
    return numbers.take(pc.index_in(told, value_set=pa.array(list(LETTERS.values()))))
