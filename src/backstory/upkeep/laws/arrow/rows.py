"""The rows of a small table record by record, for the rule of its laws."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import values_of


def rows_in_order(files: Files, names: Sequence[str], order: Sequence[str]) -> pa.Table:
    """These columns of the rows, sorted as Spark sorts; Unreadable for what Spark alone reads or sorts."""
    table = files.table
    rows = files.rows(table.snapshot, table.fields, list(dict.fromkeys([*names, *order])))
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


def records(
    rows: pa.Table, identity: Sequence[str], told: Mapping[str, Sequence[Any]]
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each record, which stand side by side: the values of columns by `told` name."""
    keys = list(zip(*(values_of(rows[name]) for name in identity), strict=True))
    found = (dict(zip(told, row, strict=True)) for row in zip(*told.values(), strict=True))
    for _, life in groupby(zip(keys, found, strict=True), key=lambda pair: pair[0]):
        yield [row for _, row in life]
