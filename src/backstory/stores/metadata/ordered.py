"""The rows of a small table in the order in which Spark sorts them."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files


def rows_in_order(files: Files, names: Sequence[str], order: Sequence[str]) -> pa.Table:
    """These columns of the rows, sorted as Spark sorts; Unreadable for what Spark alone reads or sorts."""
    table = files.table
    rows = files.rows(table.snapshot, table.fields, list(dict.fromkeys([*names, *order])))
    return in_order(rows, order)


def in_order(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """The rows, sorted as Spark sorts; Unreadable for what Spark alone sorts."""
    if any(pa.types.is_floating(rows[name].type) for name in order):
        raise Unreadable("numbers that are equal and look different")
    keys: dict[str, pa.ChunkedArray] = {}
    for place, name in enumerate(order):
        keys |= {f"{place} is told": rows[name].is_valid(), f"{place}": rows[name]}
    try:
        places = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise Unreadable("a key that is not sorted here") from None
    return rows.take(places)
