"""A copy planned by the driver, without a Spark job: together, or in parts by key where it is large."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from backstory.doors.native.copy_rows import CopyRows, copy_rows, delivered_rows
from backstory.doors.native.planned import NEW, REOPENED, PlannedCopy, PlannedRows
from backstory.doors.native.refusals import keys_of_rows, refuse_faults
from backstory.doors.native.sides import CopySides
from backstory.doors.native.stored_side import DELIVERED, SLICE
from backstory.engine.held_rows import ROWS_IN_PIECE, HeldRows, come_of, together
from backstory.engine.parts import parts_by_key
from backstory.engine.staging import is_local
from backstory.engine.steps import ComingRows, is_small, parts_in_step, rows_in_step
from backstory.errors import MAX_KEYS
from backstory.formats.delivered import shaped
from backstory.formats.digest import digest
from backstory.formats.memory import MemoryLease, TooLarge
from backstory.model.change import Pieces
from backstory.stores.iceberg.slice import PLACE
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies import sifted
from backstory.strategies.copies.rows import OPEN, begun
from backstory.strategies.copies.sifted import FAULTS, is_faultless, joined_plans, plan_rows
from backstory.strategies.copies.terms import CopyTerms
from backstory.strategies.copies.touched import (
    APPEARED,
    CopyPlan,
)
from backstory.strategies.keys import flagged, key_codes, keys_by_value


def plan_here(sides: CopySides, kept: ExitStack) -> PlannedCopy | None:
    """The plan of a copy; None where it is not read exactly here, TooLarge where it is too much.

    What is held or spilled goes with `kept`. Raises Refused for a NULL in a key, for rows of one key that
    differ, and for two versions of a record at one time.
    """
    if sides.evolved.retyped:
        return None  # a new type is written into all rows, by Spark's tasks
    lease = kept.enter_context(sides.store.memory.lease())
    for here in (True, False):
        rows = copy_rows(sides, lease, here=here)
        with suppress(Unreadable):
            return _planned(sides, rows, lease, kept)
    return None


def _planned(sides: CopySides, rows: CopyRows, lease: MemoryLease, kept: ExitStack) -> PlannedCopy:
    is_first = sides.table is None or not sides.table.rows
    if is_first and (opening := _first_load(sides, rows, lease)) is not None:
        return opening
    with suppress(TooLarge), _in_step(sides, rows) as steps:
        if steps is not None:
            return _of_parts(sides, rows, steps, lease, kept)
    both = {DELIVERED: rows.delivered, SLICE: rows.stored.slice}
    local = is_local(sides.store)
    try:
        whole = parts_by_key(both, sides.terms.key, lease, spills=local)
        return _of_parts(sides, rows, whole, lease, kept)
    except TooLarge:  # there is room for the rows, and none for what becomes of them
        if not local:
            raise
    return _of_parts(sides, rows, parts_by_key(both, sides.terms.key, lease, spread=True), lease, kept)


def _in_step(
    sides: CopySides, rows: CopyRows
) -> AbstractContextManager[Iterator[Mapping[str, pa.Table]] | None]:
    """The parts of a copy that is large, where its rows have the order of the stored ones; else None."""
    memory = sides.store.memory
    if rows.keys is None or rows.stored.placed is None or is_small(memory, sides.source.size):
        return nullcontext()
    count = rows_in_step(memory, (rows.delivered, rows.stored.slice))
    coming = ComingRows(rows.delivered, rows.keys)
    return parts_in_step(DELIVERED, coming, {SLICE: rows.stored.placed}, sides.terms.key, memory, count)


def _of_parts(
    sides: CopySides,
    rows: CopyRows,
    parts: Iterable[Mapping[str, pa.Table]],
    lease: MemoryLease,
    kept: ExitStack,
) -> PlannedCopy:
    terms, content, plans = sides.terms, list[int](), list[CopyPlan]()
    come = HeldRows("rows that come", lease, kept)
    faults: Counter[str] = Counter()
    few: dict[str, list[pa.Table]] = defaultdict(list)
    for part in parts:
        plan = plan_rows(terms, part[DELIVERED], part[SLICE], rows.stored.whole)
        if plan.counts.keys() & set(FAULTS):
            faults.update(plan.counts)
            for kind, keys in plan.samples.items():
                few[kind].append(keys)
            continue
        content.append(digest(part[DELIVERED]))
        come.add(plan.come)
        plans.append(replace(plan, come=plan.come.slice(0, 0)))
    if faults:
        joined = {kind: pa.concat_tables(keys) for kind, keys in few.items()}
        refuse_faults(sides.store, terms.key, faults, joined)
    whole = joined_plans(plans)
    back = _reappearing(terms, whole.appeared, rows.stored.elsewhere)
    samples = {
        **whole.samples,
        APPEARED: whole.appeared,
        REOPENED: whole.appeared.filter(pa.array(back)),
        NEW: whole.appeared.filter(pa.array(~back)),
    }
    gone = whole.gone.cast(PLACE) if len(whole.gone) else None
    return PlannedCopy(
        terms,
        whole.counts,
        int(back.sum()),
        whole.counts.get(sifted.DELIVERED, 0),
        lambda: content[0] if len(content) == 1 else hash(tuple(content)),
        partial(_keys, sides, samples),
        lambda: PlannedRows(gone, come_of(come.tables, come), len(whole.gone), come.count),
    )


def _reappearing(
    terms: CopyTerms, appeared: pa.Table, elsewhere: Callable[[pa.Table], Iterable[pa.Table]]
) -> np.ndarray:
    """Which of the records that appear have versions elsewhere, whose keys are read some at a time."""
    seen = np.zeros(len(appeared), bool)
    if not len(appeared):
        return seen
    keys = keys_by_value(appeared, terms.key)
    for rows in elsewhere(appeared):
        (mine, theirs), count = key_codes([keys, keys_by_value(rows, terms.key)], terms.key)
        seen |= flagged(theirs, count)[mine]
    return seen


def _keys(sides: CopySides, samples: dict[str, pa.Table], *kinds: str) -> list[str]:
    """Up to ten keys of the records of these kinds."""
    few = (samples[kind].slice(0, MAX_KEYS) for kind in kinds if kind in samples)
    return [key for rows in few for key in keys_of_rows(sides.store, rows, sides.terms.key)][:MAX_KEYS]


def _first_load(sides: CopySides, rows: CopyRows, lease: MemoryLease) -> PlannedCopy | None:
    """The plan for a table without rows: every record begins, and its row goes from file to file.

    The columns of key and scope are read first, and alone. None where a row is faulty or a key comes twice:
    then all values must be looked at.
    """
    terms = sides.terms
    keys = delivered_rows(sides, [*terms.key, *(name for name, _ in terms.scope or ())])
    if keys is None:
        return None
    count, content, few = 0, list[int](), keys.schema.empty_table()
    for part in parts_by_key({DELIVERED: keys}, terms.key, lease):
        alone = part[DELIVERED]
        if not is_faultless(terms, alone):
            return None
        count += len(alone)
        few = pa.concat_tables([few, alone]).slice(0, MAX_KEYS)
    end = OPEN if terms.following is None else terms.following

    def opening() -> Iterator[pa.Table]:
        content.clear()
        for piece in together(rows.delivered.tables(), ROWS_IN_PIECE):
            content.append(digest(piece))
            whole = begun(piece, terms.at, np.full(len(piece), end), terms.recorded)
            yield shaped(whole, terms.columns, ids=terms.ids)

    return PlannedCopy(
        terms,
        {APPEARED: count, sifted.DELIVERED: count},
        0,
        count,
        lambda: hash(tuple(content)),
        partial(_keys, sides, {APPEARED: few, NEW: few}),
        lambda: PlannedRows(None, Pieces(opening) if count else None, 0, count),
    )
