"""The layout's own columns for versions that open, end or are withdrawn, as Arrow (V6 to V8, V31)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import shape_rows
from backstory.formats.rows import arrow_type
from backstory.model.layout import (
    FILE,
    IS_CURRENT,
    MEMORY,
    POSITION,
    RECORDED_AT,
    ROW_ID,
    VALID_FROM,
    VALID_TO,
)
from backstory.model.table import Column
from backstory.model.types import ColumnType
from backstory.model.versions_layout import COLUMNS, END_BEFORE, ENDED_AT, KIND, ROLE, SCOPE, FactKind, Role
from backstory.strategies.part_plan import ADDED, REMOVED

Values: TypeAlias = pa.Array | pa.ChunkedArray
INSTANT = pa.timestamp("us", "UTC")
# The microseconds of an open end.
OPEN = np.iinfo(np.int64).max


def micros(values: Values) -> np.ndarray:
    """Instants as microseconds; NULL becomes `OPEN`."""
    joined = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return np.asarray(pc.fill_null(joined.cast(INSTANT).cast(pa.int64()), int(OPEN)))


def instants(values: np.ndarray) -> pa.Array:
    """Microseconds as instants; `OPEN` becomes NULL."""
    return pa.array(values, pa.int64(), mask=values == OPEN).cast(INSTANT)


def with_columns(rows: pa.Table, values: Mapping[str, Values]) -> pa.Table:
    """The rows with these columns added or replaced."""
    there = {name: rows[name] for name in rows.column_names}
    return pa.table({**there, **values})


def move_ends(
    rows: pa.Table, ends: np.ndarray, recorded: int, memory: ColumnType, role: Role | None = None
) -> pa.Table:
    """Move the ends of versions. If a role is given, the versions are withdrawn (V7, V8)."""
    changes = {ENDED_AT: _repeat(recorded, len(rows)), END_BEFORE: rows[VALID_TO].combine_chunks()}
    if role is not None:
        changes[ROLE] = pa.repeat(role.value, len(rows))
    own = {
        VALID_TO: instants(ends),
        IS_CURRENT: pa.array(ends == OPEN),
        RECORDED_AT: pc.coalesce(memory_field(rows, ENDED_AT), rows[RECORDED_AT]),
        MEMORY: _memory(rows, memory, changes),
    }
    return with_columns(rows, own)


def past_rows(rows: pa.Table, memory: ColumnType) -> pa.Table:
    """The statements that a second move of an end would overwrite, as new rows (V7)."""
    again = rows.filter(pc.is_valid(memory_field(rows, ENDED_AT)))
    own = {
        VALID_TO: again[VALID_FROM],
        IS_CURRENT: pa.repeat(False, len(again)),
        MEMORY: _memory(again, memory, {ROLE: pa.repeat(Role.PAST.value, len(again))}),
    }
    return with_columns(again, own | _without_ids(again))


def restate_rows(rows: pa.Table, ends: np.ndarray, recorded: int, memory: ColumnType) -> pa.Table:
    """Copies of moved or withdrawn rows, as new rows that are true until the given ends."""
    fact = pc.fill_null(pc.equal(memory_field(rows, ROLE), Role.FACT.value), False)
    role = pc.if_else(fact, pa.scalar(Role.FACT.value), pa.scalar(None, pa.string()))
    own = {
        VALID_TO: instants(ends),
        IS_CURRENT: pa.array(ends == OPEN),
        RECORDED_AT: _repeat(recorded, len(rows)),
        MEMORY: _memory(rows, memory, {ENDED_AT: None, END_BEFORE: None, ROLE: role}),
    }
    return with_columns(rows, own | _without_ids(rows))


def begin_versions(rows: pa.Table, start: int, ends: np.ndarray, recorded: int) -> pa.Table:
    """New versions with the values of the rows, from `start` until `ends`."""
    own = {
        VALID_FROM: _repeat(start, len(rows)),
        VALID_TO: instants(ends),
        IS_CURRENT: pa.array(ends == OPEN),
        RECORDED_AT: _repeat(recorded, len(rows)),
    }
    values = rows.drop_columns([MEMORY]) if MEMORY in rows.column_names else rows
    return with_columns(values, own | _without_ids(values))


def copy_mark(
    at: int, recorded: int, memory: ColumnType, columns: Sequence[int] | None, scope: str | None = None
) -> pa.Table:
    """The row that records a copy.

    `columns` has the field ids of all copied columns, which excludes columns added later. `scope` is JSON
    (V31, V138).
    """
    fact = {
        ROLE: pa.array([Role.FACT.value]),
        KIND: pa.array([FactKind.COPY.value]),
        COLUMNS: pa.array([columns], pa.list_(pa.int32())),
        SCOPE: pa.array([scope], pa.string()),
    }
    return pa.table(
        {
            VALID_FROM: _repeat(at, 1),
            VALID_TO: _repeat(at, 1),
            IS_CURRENT: pa.array([False]),
            RECORDED_AT: _repeat(recorded, 1),
            MEMORY: memory_of(memory, fact, 1),
        }
    )


def withdraw_facts(marks: pa.Table, recorded: int, memory: ColumnType) -> pa.Table:
    """The rows of facts, marked as withdrawn (V8)."""
    return with_columns(marks, {MEMORY: _memory(marks, memory, {ENDED_AT: _repeat(recorded, len(marks))})})


def are_versions(rows: pa.Table) -> pa.ChunkedArray:
    """A mask of the rows that are versions."""
    return pc.is_null(pc.struct_field(rows[MEMORY], ROLE))


def are_live(rows: pa.Table) -> pa.ChunkedArray:
    """A mask of the live rows: versions, and facts that were not withdrawn."""
    role, ended = (pc.struct_field(rows[MEMORY], name) for name in (ROLE, ENDED_AT))
    fact = pc.and_(pc.fill_null(pc.equal(role, Role.FACT.value), False), pc.is_null(ended))
    return pc.or_(pc.is_null(role), fact)


def written_rows(
    parts: Iterable[tuple[pa.Table, bool]], stored: pa.Table, columns: Iterable[Column], *, ids: bool
) -> dict[str, pa.Table]:
    """The rows to add, and the places of stored rows to remove, by kind.

    The flag of a part is true if the part replaces stored rows. It then has their places. `ids` is true if
    rows have ids.
    """
    columns, none = tuple(columns), stored.slice(0, 0)
    added, removed = [none.select([])], [none]
    for rows, replaces in parts:
        added.append(rows)
        removed += [rows] if replaces else []
    return {
        REMOVED: pa.concat_tables([rows.select([FILE, POSITION]) for rows in removed]),
        ADDED: pa.concat_tables([shape_rows(rows, columns, ids=ids) for rows in added]),
    }


def memory_field(rows: pa.Table, name: str) -> pa.Array:
    """A field of `_memory`, or NULL if `_memory` is NULL."""
    return pc.struct_field(rows[MEMORY].combine_chunks(), name)


def memory_of(memory: ColumnType, fields: Mapping[str, pa.Array | None], count: int) -> pa.Array:
    """The column `_memory` with these fields, or NULL for rows in which all its fields are NULL (V1).

    A field that is missing or None is NULL in all rows.
    """
    types = {name: arrow_type(type_) for name, type_ in memory.parts}
    parts = []
    for name, type_ in types.items():
        values = fields.get(name)
        parts.append(pa.nulls(count, type_) if values is None else values.cast(type_))
    empty = reduce(pc.and_, (part.is_null() for part in parts))
    return pa.StructArray.from_arrays(parts, names=list(types), mask=empty)


def _memory(rows: pa.Table, memory: ColumnType, changes: Mapping[str, pa.Array | None]) -> pa.Array:
    """The column `_memory` with these fields replaced. Fields that only feeds use are kept."""
    fields = {name: memory_field(rows, name) for name, _ in memory.parts if name not in changes}
    return memory_of(memory, {**fields, **changes}, len(rows))


def _without_ids(rows: pa.Table) -> dict[str, Values]:
    return {ROW_ID: pa.nulls(len(rows), pa.int64())} if ROW_ID in rows.column_names else {}


def _repeat(instant: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(instant, INSTANT), count)
