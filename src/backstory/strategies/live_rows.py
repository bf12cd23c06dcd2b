"""Replace, update and delete rows of a table without history, as one plan (section 2.8)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from backstory.formats.rows import Rows
from backstory.model.layout import FILE, POSITION
from backstory.strategies.keys import Codes, flags_of, key_codes, last_of
from backstory.strategies.part_plan import ADDED, REMOVED, PartPlan
from backstory.strategies.values import differing, take_or_null, with_row_ids


@dataclass(frozen=True, slots=True)
class LiveDelivery:
    """The rows of one WriteBatch.

    Rows of each kind have all columns of the table. `columns` are the columns in the request. A replace row
    that lacks a value for one of these columns sets the column to NULL.
    """

    key: Sequence[str]
    columns: Collection[str]
    replace: Rows
    update: Rows
    delete: pa.Table


def plan_live_rows(stored: pa.Table, delivery: LiveDelivery) -> PartPlan:
    """The plan that applies the delivery to the table.

    `stored` has the table's rows with the delivered keys, with `_file` and `_pos`. If rows have ids, it also
    has `_row_id`, which a changed row keeps. Replaces are applied first, then updates, then deletes. If
    replace rows repeat a key, the last one is used. All update rows are applied, in order.
    """
    operations = Rows.concat([_whole(delivery), delivery.update], delivery.replace.values.schema)
    (codes, deleted_codes, stored_codes), count = key_codes(
        [operations.values, delivery.delete, stored], delivery.key
    )
    base = last_of(stored_codes, count)
    put = flags_of(codes[: delivery.replace.count], count)
    deleted = flags_of(deleted_codes, count)
    exists = put | (base >= 0)

    wanted = np.flatnonzero(flags_of(codes, count) & exists & ~deleted)
    # Every update is used, and the last replace row of each key.
    replaced = delivery.replace.count
    counting = np.ones(len(codes), bool)
    counting[:replaced] = last_of(codes[:replaced], count)[codes[:replaced]] == np.arange(replaced)
    result = _fold_operations(operations, stored, codes, base, wanted, counting)
    old = base[wanted]
    changed = old < 0
    changed[old >= 0] = _find_changes(result, stored, old)
    removed = (deleted | flags_of(wanted[changed], count))[stored_codes]
    orphans = np.count_nonzero(~exists[codes[delivery.replace.count :]])
    counts = {
        "inserted": int(np.count_nonzero(old < 0)),
        "updated": int(np.count_nonzero(changed & (old >= 0))),
        "deleted": int(np.count_nonzero(deleted & (base >= 0))),
        "unchanged": int(np.count_nonzero(~changed)),
        "ignored": int(orphans + np.count_nonzero(deleted & ~exists)),
    }
    added = result if changed.all() else result.filter(pa.array(changed))
    added = with_row_ids(added, stored, old[changed])
    places = stored.select([FILE, POSITION]).filter(pa.array(removed))
    return PartPlan({REMOVED: places, ADDED: added}, counts)


def _whole(delivery: LiveDelivery) -> Rows:
    """The rows of replace operations. Missing values of the request's columns count as known NULLs."""
    known = delivery.replace.known
    yes = pa.repeat(pa.scalar(True), delivery.replace.count)
    for place, name in enumerate(known.column_names):
        if name in delivery.columns:
            known = known.set_column(place, name, yes)
    return Rows(delivery.replace.values, known)


def _fold_operations(
    operations: Rows,
    stored: pa.Table,
    codes: Codes,
    base: np.ndarray,
    wanted: np.ndarray,
    counting: np.ndarray,
) -> pa.Table:
    """One row for each wanted key.

    Each cell is taken from the last operation with a value for it, or else from the stored row.
    """
    schema = operations.values.schema
    everything = len(wanted) == operations.count and not stored.num_rows
    if everything:
        return operations.values
    count = len(base)
    columns = []
    for name in schema.names:
        known = np.flatnonzero(np.asarray(operations.known[name]) & counting)
        last = np.full(count, -1, np.int64)
        last[codes[known]] = known
        row = last[wanted]
        before = base[wanted]
        row = np.where(row >= 0, row, np.where(before >= 0, before + operations.count, -1))
        both = pa.chunked_array([*operations.values[name].chunks, *stored[name].chunks])
        columns.append(take_or_null(both, row))
    return pa.table(columns, schema=schema)


def _find_changes(result: pa.Table, stored: pa.Table, old: np.ndarray) -> np.ndarray:
    matched = np.flatnonzero(old >= 0)
    if not len(matched):
        return np.zeros(0, bool)
    before = stored.select(result.column_names).take(pa.array(old[matched]))
    return differing(result.take(pa.array(matched)), before)
