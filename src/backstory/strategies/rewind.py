"""Rewind rows of layout `versions`: withdraw everything recorded after a time (native.md V6 to V9, V84, V85).

Withdrawn states remain as past statements.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model.layout import (
    FILE,
    MEMORY,
    POSITION,
    RECORDED_AT,
    ROW_ID,
    VALID_FROM,
    VALID_TO,
    VERSIONS_OWN,
)
from backstory.model.table import Column
from backstory.model.versions_layout import (
    COLUMNS,
    END_BEFORE,
    ENDED_AT,
    KIND,
    OWN_TIME,
    ROLE,
    SCOPE,
    SEQUENCE,
    Role,
)
from backstory.strategies.copies.version_rows import (
    memory_field,
    micros,
    move_ends,
    past_rows,
    restate_rows,
    withdraw_facts,
)
from backstory.strategies.keys import key_codes, keys_by_value
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan
from backstory.strategies.values import rows_alike

TAKEN_BACK, RETURNED, MOVED = "taken_back", "returned", "moved"
KEYS = "keys"
# The fields that distinguish facts of the same record and instant (V9).
_FACT_FIELDS = (KIND, SEQUENCE, SCOPE, COLUMNS, OWN_TIME)


@dataclass(frozen=True, slots=True)
class RewindTerms:
    """The columns and key of a table, and two recorded times in microseconds.

    `known` is the time to rewind to, and `now` is the present. Columns in `untold` have no history (V18).
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    known: int
    now: int
    untold: frozenset[str]


def plan_rewind(terms: RewindTerms, rows: pa.Table) -> PartPlan:
    """The plan of a rewind, with the number of rows by outcome, and a few keys of changed records.

    `rows` are the rows that were recorded or ended after the time, with their places. Marks have no key, so
    they are not sampled.
    """
    start, end = micros(rows[VALID_FROM]), micros(rows[VALID_TO])
    role, ended = memory_field(rows, ROLE), memory_field(rows, ENDED_AT)
    fact = np.asarray(pc.fill_null(pc.equal(role, Role.FACT.value), False))
    live = np.asarray(role.is_null()) | (fact & np.asarray(ended.is_null()))
    wanted = micros(rows[RECORDED_AT]) <= terms.known
    end_then = np.where(fact, end, micros(memory_field(rows, END_BEFORE)))
    then = _rows_then(terms, rows, live, wanted, fact)
    returns = wanted.copy()
    returns[then[then >= 0]] = False
    stays = then >= 0
    new_end = np.where(stays, end_then[then], start)
    moves, goes = stays & (new_end != end), live & ~stays
    memory = next(column.type for column in terms.columns if column.name == MEMORY)
    moving, going = moves & ~fact, goes & ~fact
    mine, theirs = (rows.filter(pa.array(each)) for each in (moving, going))
    written = [
        move_ends(mine, new_end[moving], terms.now, memory),
        move_ends(theirs, start[going], terms.now, memory, Role.PAST),
        past_rows(mine, memory),
        past_rows(theirs, memory),
        withdraw_facts(rows.filter(pa.array(goes & fact)), terms.now, memory),
        restate_rows(rows.filter(pa.array(returns)), end_then[returns], terms.now, memory),
    ]
    outcomes = {TAKEN_BACK: goes, RETURNED: returns, MOVED: moves}
    counts = {name: int(rows_of.sum()) for name, rows_of in outcomes.items()}
    named = np.asarray(pc.is_valid(rows[terms.key[0]])) & (goes | returns | moves)
    few = rows.filter(pa.array(named)).select(terms.key).group_by([*terms.key]).aggregate([])
    few = few.sort_by([(name, "ascending") for name in terms.key]).slice(0, MAX_KEYS)
    schema = rows.drop_columns([FILE, POSITION]).schema
    added = pa.concat_tables([part.select(schema.names).cast(schema) for part in written])
    removed = rows.filter(pa.array(moves | goes)).select([FILE, POSITION])
    return PartPlan({ADDED: added, REMOVED: removed}, counts, {KEYS: few} if len(few) else {})


def _rows_then(
    terms: RewindTerms, rows: pa.Table, live: np.ndarray, wanted: np.ndarray, fact: np.ndarray
) -> np.ndarray:
    """For each live row, the index of an equal wanted row of the same fact (V9), or -1 without one."""
    by = [*terms.key, VALID_FROM]
    (codes,), _ = key_codes([keys_by_value(rows, by)], by)
    mine, theirs = np.flatnonzero(live), np.flatnonzero(wanted)
    theirs = theirs[np.argsort(codes[theirs], kind="stable")]
    first, last = (np.searchsorted(codes[theirs], codes[mine], side) for side in ("left", "right"))
    count = last - first
    one = np.repeat(mine, count)
    other = theirs[np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)]
    left, right = rows.take(pa.array(one)), rows.take(pa.array(other))
    untold = terms.untold.difference(terms.key).union(VERSIONS_OWN, {FILE, POSITION, ROW_ID})
    names = [name for name in rows.column_names if name not in untold]
    fields = [each.name for each in rows.schema.field(MEMORY).type if each.name in _FACT_FIELDS]
    pairs = [(left[name], right[name]) for name in names]
    pairs += [(memory_field(left, name), memory_field(right, name)) for name in fields]
    same = rows_alike(pairs, len(one)) & (fact[one] == fact[other])
    then = np.full(len(rows), -1)
    then[one[same]] = other[same]
    return then
