"""The rows that a new life leaves, as Arrow tables in the table's columns (native.md V2 to V9, V31, V72)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.formats.delivered import shaped
from backstory.formats.rows import arrow_type
from backstory.model.layout import IS_CURRENT, MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.remembered import COLUMNS, KIND, OWN_TIME, ROLE, SCOPE, SEQUENCE, Role, Told
from backstory.strategies.copies.rows import INSTANT, OPEN, instants, with_columns
from backstory.strategies.feeds.records import Pool
from backstory.strategies.feeds.terms import FeedTerms


@dataclass(frozen=True, slots=True)
class Remembered:
    """What rows remember, an array for each field; None where it is NULL in all of them."""

    kind: pa.Array
    sequence: pa.Array | None = None
    columns: pa.Array | None = None
    scope: pa.Array | None = None
    time: pa.Array | None = None
    role: Role | None = None


def values_at(pool: Pool, names: tuple[str, ...], places: np.ndarray) -> dict[str, pa.Array]:
    """The values of these columns at places of the pool."""
    return {name: pool.at(name, places) for name in names}


def rows_of(
    terms: FeedTerms, values: Mapping[str, pa.Array], start: np.ndarray, end: np.ndarray, told: Remembered
) -> pa.Table:
    """Versions that open, or facts, which have no length, with these values and what they remember."""
    own = {
        VALID_FROM: instants(start),
        VALID_TO: instants(end),
        IS_CURRENT: pa.array(end == OPEN),
        RECORDED_AT: pa.repeat(pa.scalar(terms.recorded, INSTANT), len(start)),
        MEMORY: _memory(terms, told, len(start)),
    }
    return shaped(pa.table({**values, **own}), terms.columns, ids=terms.ids)


def _memory(terms: FeedTerms, told: Remembered, count: int) -> pa.Array:
    """The struct; NULL where all its fields are (V1)."""
    role = None if told.role is None else pa.repeat(told.role.value, count)
    given = {
        ROLE: role,
        KIND: told.kind,
        SEQUENCE: told.sequence,
        COLUMNS: told.columns,
        SCOPE: told.scope,
        OWN_TIME: told.time,
    }
    types = {name: arrow_type(type_) for name, type_ in terms.memory.parts}
    parts = []
    for name, type_ in types.items():
        value = given.get(name)
        parts.append(pa.nulls(count, type_) if value is None else value.cast(type_))
    empty = np.ones(count, bool)
    for each in parts:
        empty &= np.asarray(each.is_null())
    fields = [pa.field(name, type_) for name, type_ in types.items()]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(empty))


def renewed(
    rows: pa.Table, pool: Pool, names: tuple[str, ...], places: np.ndarray, where: np.ndarray
) -> pa.Table:
    """The rows, some of them with the newest values of what has no history (V18)."""
    newest = {name: pool.at(name, places).cast(rows.schema.field(name).type) for name in names}
    chosen = pa.array(where)
    return with_columns(
        rows, {name: pc.if_else(chosen, value, rows[name].combine_chunks()) for name, value in newest.items()}
    )


def kinds(count: int, kind: Told) -> pa.Array:
    """One kind for so many rows."""
    return pa.repeat(kind.value, count)
