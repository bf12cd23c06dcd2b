"""A Change becomes one commit of a table in memory, exactly as the Change specifies."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from backstory.errors import Failed
from backstory.model.change import NOTHING, Change, Commit, Note, Tag
from backstory.model.layout import POSITION
from backstory.model.table import Shape, TableName
from backstory.model.types import widens
from backstory.observe import COMMITS
from backstory.stores.port import DISORDER, conflict, refuse_names
from memory_store.store import MemoryStore, MemoryTable, Snapshot, TableState, WrittenRows

Value = TypeVar("Value", str, int)


def commit(store: MemoryStore, table: MemoryTable | None, change: Change, note: Note) -> Commit:
    """Make the one commit. Without a table, the change creates it.

    Raises TryAgain if another writer was first, or if the number of rows is unexpected. Raises Refused for an
    invalid or existing name. A failed commit leaves nothing.
    """
    with store.lock:
        if table is None or change.recreate:
            return _make(store, change, note)
        name = table.shape.table
        if change.dropped or (change.into and change.into.table != name):
            return _move(store, name, change)
        if store.states.get(name) is not table.state:
            raise conflict(name)
        state, committed = _changed(store, table.state, change, note)
        store.states[name] = state
        return committed


def _make(store: MemoryStore, change: Change, note: Note) -> Commit:
    shape = change.into
    assert shape is not None
    name = shape.table
    refuse_names(shape.names)
    before = store.states.get(name)
    if before is not None and not change.recreate:
        raise conflict(name)
    state = _reshaped(TableState(shape, {}, 0), shape, NOTHING)
    if before is not None:  # a table that replaces another one has its past and its properties
        state = replace(
            state,
            history=before.history,
            schema_id=before.schema_id + 1,
            numbers={each: number + before.newest_number for each, number in state.numbers.items()},
            newest_number=state.newest_number + before.newest_number,
            properties=before.properties,
            tags=before.tags,
        )
    state = replace(state, properties=_set(state.properties, change.properties))
    committed = Commit(None, change.counts)
    if change.added is not None:
        state, committed = _written(store, state, change, note, state.schema.empty_table())
    store.states[name] = state
    return committed


def _move(store: MemoryStore, table: TableName, change: Change) -> Commit:
    """Drop the table, or give it another name."""
    state = store.states.get(table)
    if change.into is None:
        store.states.pop(table, None)
    elif state is None:
        raise Failed("store-failed", f"There is no table {table} to rename.", "Nothing was changed.")
    elif change.into.table in store.states:
        raise conflict(table)
    else:
        moved = replace(state, shape=replace(state.shape, table=change.into.table))
        store.states[change.into.table] = moved
        del store.states[table]
    return Commit(None, change.counts)


def _changed(store: MemoryStore, before: TableState, change: Change, note: Note) -> tuple[TableState, Commit]:
    state = before
    if change.back_to is not None:
        state = replace(state, current=_snapshot(state, change.back_to))
    if change.into is not None:
        refuse_names(change.into.names)
        state = _reshaped(state, change.into, change.renamed)
    state = replace(state, properties=_set(state.properties, change.properties))
    state = replace(state, tags=_set(state.tags, _tagged(state, change.tags)))
    if not _touches_rows(before, change):
        return state, Commit(None, change.counts)
    return _written(store, state, change, note, _rows_to_keep(state, change))


def _snapshot(state: TableState, number: int) -> WrittenRows:
    for written in state.history:
        if written.snapshot.id == number:
            return written
    raise conflict(state.shape.table)


def _reshaped(state: TableState, into: Shape, renamed: Mapping[str, str]) -> TableState:
    """The same rows under other columns. A column that is not simply widened starts with NULLs."""
    stored = {renamed.get(each.name, each.name): each.type for each in state.shape.columns}
    known = {renamed.get(name, name): number for name, number in state.numbers.items()}
    numbers, newest = {}, state.newest_number
    for column in into.columns:
        if column.name in known and widens(stored[column.name], column.type):
            numbers[column.name] = known[column.name]
        else:
            newest += 1
            numbers[column.name] = newest
    properties = dict(state.properties)
    if into.layout is not state.shape.layout:
        properties.pop(DISORDER, None)
    same = into.columns == state.shape.columns
    return replace(
        state,
        shape=into,
        numbers=numbers,
        newest_number=newest,
        schema_id=state.schema_id + (not same),
        properties=properties,
    )


def _tagged(state: TableState, tags: Mapping[str, Tag | None]) -> Mapping[str, int | None]:
    """The tagged snapshots, which must exist."""
    return {
        name: None if tag is None else _snapshot(state, tag.snapshot).snapshot.id
        for name, tag in tags.items()
    }


def _set(known: Mapping[str, Value], changes: Mapping[str, Value | None]) -> Mapping[str, Value]:
    both = {**known, **changes}
    return {name: value for name, value in both.items() if value is not None}


def _touches_rows(before: TableState, change: Change) -> bool:
    """Whether the change makes a snapshot."""
    if change.whole:
        return bool(before.current and before.current.rows.num_rows) or change.snapshot
    return change.snapshot or change.added is not None or change.removed is not None


def _rows_to_keep(state: TableState, change: Change) -> pa.Table:
    """The rows that are kept, under the new shape."""
    rows = state.content
    if change.whole:
        return rows.slice(0, 0)
    gone = set() if change.removed is None else set(change.removed[POSITION].to_pylist())
    return rows.filter(pa.array([place not in gone for place in range(rows.num_rows)], pa.bool_()))


def _written(
    store: MemoryStore, state: TableState, change: Change, note: Note, remaining: pa.Table
) -> tuple[TableState, Commit]:
    come = state.schema.empty_table()
    if change.added is not None:
        come = change.added.select(state.schema.names).cast(state.schema)
    if change.expected not in {None, come.num_rows}:
        raise conflict(state.shape.table)  # their source differs from the counted rows
    counts = {**change.counts, change.count_as: come.num_rows} if change.count_as else change.counts
    rows = pa.concat_tables([remaining, come]).rename_columns(
        [str(state.numbers[each]) for each in come.schema.names]
    )
    properties = {**note.properties(counts), **change.late_properties(MemoryTable(state))}
    written = WrittenRows(Snapshot(next(store.numbers), properties), rows)
    COMMITS.inc()
    after = replace(state, history=(*state.history, written), current=written)
    return after, Commit(written.snapshot.id, counts)
