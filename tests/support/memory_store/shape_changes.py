"""An operation on a table in memory: the rule, row by row."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from specification import shape_changes as rule

from backstory.formats.delivered import arrow_schema, rows_as
from backstory.model.change import Change
from backstory.model.layout import ACTIVE, END, FILE, POSITION, START
from backstory.model.table import Shape
from backstory.stores.iceberg.literals import cast_batch
from backstory.stores.port import DISORDER, repeated_key
from backstory.strategies.keys import key_codes
from backstory.strategies.shape_changes import (
    AddInHistory,
    Operation,
    Reshape,
    Rewriting,
    Touching,
    change_of,
)
from backstory.strategies.values import integers
from backstory.strategies.versions import Versions
from memory_store.store import MemoryStore, MemoryTable, rows_of

Row = dict[str, object]


@change_of.register(MemoryStore)
def by_rule(store: MemoryStore, table: MemoryTable, operation: Operation) -> Change | None:
    """The Change of the operation, or None if there is nothing to do."""
    if isinstance(operation, Reshape):
        return _reshaped(table, rows_of(store, table), operation)
    rows = rows_of(store, table).to_pylist()
    shape = table.shape
    stored = tuple(row | {POSITION: place} for place, row in enumerate(rows))
    after = rule.apply(rule.Content((*shape.names, POSITION), shape.key, stored), operation)
    if isinstance(operation, Rewriting):
        come = rows_as(operation.into.columns, after.rows)
        return Change(added=come, into=operation.into, whole=True, count_as="rewritten")
    return _touched(shape, rows, after.rows, operation)


def _touched(shape: Shape, rows: Sequence[Row], after: Sequence[Row], operation: Touching) -> Change | None:
    """The changed rows, before and after."""
    into = operation.into if isinstance(operation, AddInHistory) else None
    shape = into or shape
    became: dict[object, list[Row]] = {}
    for row in after:
        became.setdefault(row[POSITION], []).append({name: row.get(name) for name in shape.names})
    gone = [
        place
        for place, row in enumerate(rows)
        if [_exactly(row.get(name) for name in shape.names)]
        != [_exactly(new.values()) for new in became.get(place, [])]
    ]
    if not gone:
        return Change(into=into) if into else None
    come = [row for place in gone for row in became.get(place, [])]
    places = pa.table({FILE: pa.array([""] * len(gone)), POSITION: pa.array(gone, pa.int64())})
    outcome = "updated" if come else "deleted"
    return Change({outcome: len(gone)}, places, rows_as(shape.columns, come) if come else None, into)


def _exactly(values: Iterable[object]) -> list[object]:
    """Values in a form in which NaN equals itself."""
    return ["NaN" if isinstance(each, float) and math.isnan(each) else each for each in values]


def _reshaped(table: MemoryTable, rows: pa.Table, operation: Reshape) -> Change:
    into, new_types, by = operation.into, operation.retyped_columns, operation.unique_by
    if not table.rows or (not new_types and by is None):
        return Change(into=into)
    stored = {each.name: each.type for each in operation.before.columns}
    changes = [
        (each, stored[each.name]) for each in into.columns if stored.get(each.name, each.type) != each.type
    ]
    schema = arrow_schema({each.name: each.type for each in into.columns})
    for each in schema:
        if each.name not in rows.column_names:
            rows = rows.append_column(each.name, pa.nulls(rows.num_rows, each.type))
    batches = rows.select(schema.names).combine_chunks().to_batches()
    if new_types:
        rows = pa.Table.from_batches([cast_batch(changes, batch) for batch in batches]).cast(schema)
    marks: dict[str, str | None] = {}
    if by is not None:
        _refuse_repeated(into, rows, by)
        if operation.of_history and _overlap(rows, into.key):
            marks = {DISORDER: "true"}
    if not new_types:
        return Change(into=into, properties=marks)
    return Change(added=rows, into=into, whole=True, count_as="rewritten", properties=marks)


def _overlap(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether versions of a key overlap, or an open version precedes another."""
    (codes,), _ = key_codes([rows], key)
    active = np.asarray(pc.fill_null(rows[ACTIVE], False)).astype(int)
    start, end, places = integers(rows[START]), integers(rows[END]), np.arange(len(rows))
    return Versions(places, places, codes, start, end, active).by_start().disorderly()


def _refuse_repeated(into: Shape, rows: pa.Table, by: Sequence[str]) -> None:
    keys = Counter(tuple(str(row[name]) for name in by) for row in rows.to_pylist())
    shared = [times for times in keys.values() if times > 1]
    if shared:
        raise repeated_key(into.table, into.source_key, len(shared), sum(shared))
