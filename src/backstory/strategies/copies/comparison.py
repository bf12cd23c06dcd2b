"""Compare a full copy with the stored versions, and plan the records that differ.

A copy is compared as a whole or in parts by key.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.formats.rows import digest
from backstory.strategies.copies.plan import (
    HAD,
    UNCHANGED,
    CopyTerms,
    plan_copy,
    rows_at,
    spoilt_rows,
)
from backstory.strategies.copies.version_rows import are_versions
from backstory.strategies.feeds.copy_plan import own_voids, plan_copy_in_feed
from backstory.strategies.feeds.terms import Scope
from backstory.strategies.keys import flags_of, key_codes, keys_by_value, without_key
from backstory.strategies.part_plan import PartPlan, refused_part
from backstory.strategies.values import Matches, alike, distinct, equal_to, pair_rows, side_codes, take_rows
from backstory.strategies.whole_rows import count_equal_rows

# Counts of faults for which a copy is refused, with sampled keys, and counts of delivered rows.
FAULTS = NO_KEY, DIFFERING, SPOILT, OUTSIDE, CLAIMED = (
    "without a key",
    "differing",
    "spoilt",
    "outside of the scope",
    "of another scope",
)
DELIVERED = "delivered"
# Counts of whole rows, including duplicates.
ROWS_NOW, ROWS_BEFORE, ROWS_GONE = "whole rows now", "whole rows before", "whole rows gone"
# A digest of the delivered rows, as a number.
CONTENT = "content"
# Counts for pairs of columns that may be one renamed column: records with a value, and with the same value in
# both.
VALUED, CARRIED = "valued ", "carried "


def plan_rows(
    terms: CopyTerms, delivered: pa.Table, slice_: pa.Table, whole: Callable[[pa.Table], pa.Table]
) -> PartPlan:
    """The rows to add and to remove, the keys of appearing records, and all counts.

    `slice_` has the stored versions that the copy can touch, with their places and decisive columns. `whole`
    adds all other columns to rows of `slice_`. If there are faults (`FAULTS`), the result has only their
    counts and samples.
    """
    refused = without_key(delivered, terms.key)
    conflicts = refused.slice(0, 0)
    if not len(refused):
        delivered, conflicts = (
            distinct(delivered, terms.key)
            if terms.copies is None
            else count_equal_rows(delivered, terms.key, terms.copies)
        )
    versions = slice_ if terms.feed is None else slice_.filter(are_versions(slice_))
    stored = versions.filter(rows_at(terms, versions))
    faults = {
        NO_KEY: refused,
        DIFFERING: conflicts,
        SPOILT: spoilt_rows(terms, versions),
        OUTSIDE: delivered.filter(pa.array(~_in_scope(terms.scope, delivered))),
        CLAIMED: _rows_of_other_scopes(terms, delivered, stored),
    }
    if refused := refused_part(faults, lambda rows: rows.select(terms.key).slice(0, MAX_KEYS)):
        return refused
    scope = pa.chunked_array([_in_scope(terms.scope, stored) & terms.closes])
    codes = side_codes(delivered, stored, terms.key)  # all keys are unique on each side
    matches = pair_rows(delivered, stored, codes, terms.decisive, scope)
    touched, rest = _split_by_touch(terms, matches)
    rows, versions = (take_rows(*side) for side in zip((delivered, stored), touched, strict=True))
    if terms.feed is None:
        planned = _plan_in_order(terms, rows, whole(versions), matches)
    else:
        voids = own_voids(terms.feed, slice_)
        versions = whole(_versions_of_records(terms, rows, versions, slice_))
        planned = plan_copy_in_feed(terms.feed, rows, versions, whole(voids) if len(voids) else voids)
    counts = Counter(planned.counts)
    counts.update({UNCHANGED: len(rest[0]), DELIVERED: len(delivered)})
    counts.update(
        {f"{HAD}{name}": len(rest[1]) - stored[name].take(rest[1]).null_count for name in terms.compared}
    )
    pairs = [pa.concat_arrays(places) for places in zip(matches.changed, matches.same, strict=True)]
    counts.update(_successions(terms, delivered, stored, pairs))
    counts[CONTENT] = digest(delivered)
    if terms.copies is not None:
        counts.update(_count_whole_rows(terms.copies, delivered, stored, matches))
    return PartPlan(planned.rows, dict(counts), planned.samples)


def _plan_in_order(terms: CopyTerms, rows: pa.Table, versions: pa.Table, matches: Matches) -> PartPlan:
    """The plan of a copy in order. `rows` and `versions` are the touched rows of both sides."""
    appeared, changed = len(matches.appeared), len(matches.changed[0])
    pairs = rows.slice(appeared), versions.slice(0, changed)
    return plan_copy(terms, rows.slice(0, appeared), pairs, versions.slice(changed))


def _count_whole_rows(copies: str, delivered: pa.Table, stored: pa.Table, matches: Matches) -> dict[str, int]:
    """The numbers of whole rows before and after the copy, and of removed rows, including duplicates."""
    now, before = (np.asarray(side[copies].combine_chunks()) for side in (delivered, stored))
    mine, theirs = map(np.asarray, matches.changed)
    fewer = np.maximum(before[theirs] - now[mine], 0)
    gone = int(before[np.asarray(matches.vanished)].sum()) + int(fewer.sum())
    return {ROWS_NOW: int(now.sum()), ROWS_BEFORE: int(before.sum()), ROWS_GONE: gone}


def is_faultless(terms: CopyTerms, rows: pa.Table) -> bool:
    """Whether the rows of a first copy are free of faults and have unique keys.

    `rows` has at least the columns of the key and the scope.
    """
    return (
        not len(without_key(rows, terms.key))
        and len(distinct(rows.select(terms.key), terms.key)[0]) == len(rows)
        and bool(_in_scope(terms.scope, rows).all())
    )


def _in_scope(scope: Scope | None, rows: pa.Table) -> np.ndarray:
    """A mask of the rows whose records belong to a scope (V41)."""
    inside = np.ones(len(rows), bool)
    for name, value in scope or ():
        inside &= equal_to(rows[name], value)
    return inside


def _rows_of_other_scopes(terms: CopyTerms, delivered: pa.Table, stored: pa.Table) -> pa.Table:
    """The delivered rows whose records are in the scope of another copy at the same instant (V43)."""
    if not terms.other_scopes or not len(stored):
        return delivered.slice(0, 0)
    in_scope = np.zeros(len(stored), bool)
    for scope in terms.other_scopes:
        in_scope |= _in_scope(scope, stored)
    keys = [keys_by_value(side, terms.key) for side in (delivered, stored.filter(pa.array(in_scope)))]
    (delivered_codes, stored_codes), count = key_codes(keys, terms.key)
    return delivered.filter(pa.array(flags_of(stored_codes, count)[delivered_codes]))


def _split_by_touch(
    terms: CopyTerms, matches: Matches
) -> tuple[tuple[pa.Array, pa.Array], tuple[pa.Array, pa.Array]]:
    """The indexes of delivered and stored rows that may change, and of the pairs that stay the same.

    A restatement that lacks columns may also change records that equal their delivered rows.
    """
    delivered = [matches.appeared, matches.changed[0]]
    stored = [matches.changed[1], matches.vanished]
    rest = matches.same
    if terms.restated and terms.absent:
        delivered, stored = [*delivered, rest[0]], [*stored, rest[1]]
        rest = (rest[0].slice(0, 0), rest[1].slice(0, 0))
    return (pa.concat_arrays(delivered), pa.concat_arrays(stored)), rest


def _versions_of_records(terms: CopyTerms, rows: pa.Table, versions: pa.Table, slice_: pa.Table) -> pa.Table:
    """All rows in the slice of the records that have touched rows or versions."""
    keys = [keys_by_value(side, terms.key) for side in (rows, versions, slice_)]
    (of_rows, of_versions, all_), count = key_codes(keys, terms.key)
    return slice_.filter(pa.array((flags_of(of_rows, count) | flags_of(of_versions, count))[all_]))


def _successions(
    terms: CopyTerms, delivered: pa.Table, stored: pa.Table, pairs: Sequence[pa.Array]
) -> dict[str, int]:
    """Two counts of records for each pair of a missing and an added column that may be one renamed column.

    One counts the records with a value in either column, and the other counts the records with the same value
    in both.
    """
    counts = {}
    for number, (old, new) in enumerate(terms.successions):
        here, there = delivered[new].take(pairs[0]), stored[old].take(pairs[1])
        any_ = np.asarray(pc.or_(pc.is_valid(here), pc.is_valid(there)))
        counts[f"{VALUED}{number}"] = int(any_.sum())
        counts[f"{CARRIED}{number}"] = int((any_ & alike(here, there)).sum())
    return counts
