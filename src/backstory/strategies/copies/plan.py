"""The plan of the records that a newest full copy touches, as Arrow tables (V7 to V9, V18, V36).

No fact is known from the copy's instant on, so the copy only ends, begins and renews open versions. Any other
copy is planned together with the facts around it (`strategies/feeds/copy_plan.py`). Records do not affect
each other. They can be planned together, in parts, or in Spark's tasks, with the same result.
"""

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import MAX_KEYS
from backstory.model.layout import MEMORY, VALID_FROM, VALID_TO
from backstory.model.table import Column
from backstory.model.types import ColumnType
from backstory.strategies.copies.version_rows import (
    OPEN,
    begin_versions,
    micros,
    move_ends,
    past_rows,
    with_columns,
    written_rows,
)
from backstory.strategies.keys import key_codes, keys_by_value, last_of
from backstory.strategies.part_plan import PartPlan
from backstory.strategies.values import alike, one_array

if TYPE_CHECKING:
    from backstory.strategies.feeds.copy_plan import FeedCopyTerms


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """The settings for the comparison of a copy. Instants are in microseconds.

    `columns` are the table's columns, and `delivered` the copy's columns, both including the key. A
    difference in `compared` columns opens a version; `renewed` columns are written into the open version.
    `tracked` are all tracked columns of the table, and `overwritten` are all columns without history.
    `following` is the next instant at which every record is known. `restated` is true if the copy replaces a
    stored one. If the new copy lacks columns, their values from the replaced copy are discarded. If `closes`
    is set, missing records are closed. `ids` is true if the table has row ids. `successions` are pairs of a
    missing and an added column of the same type, which may be one renamed column. `scope` has the columns and
    values that define the copy's scope; `other_scopes` are the scopes of other copies at the same instant.
    `feed` has the settings of the fold, if facts are known from the copy's instant on. `copies` is the column
    with the number of equal rows, if the key is the whole row.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    delivered: tuple[str, ...]
    compared: tuple[str, ...]
    renewed: tuple[str, ...]
    tracked: tuple[str, ...]
    overwritten: tuple[str, ...]
    at: int
    recorded: int
    following: int | None = None
    restated: bool = False
    closes: bool = True
    ids: bool = False
    successions: tuple[tuple[str, str], ...] = ()
    scope: tuple[tuple[str, object], ...] | None = None
    other_scopes: tuple[tuple[tuple[str, object], ...], ...] = ()
    feed: "FeedCopyTerms | None" = None
    copies: str | None = None

    @property
    def in_order(self) -> bool:
        """Whether no fact is known from the copy's instant on."""
        return self.feed is None

    @property
    def memory(self) -> ColumnType:
        """The type of the column `_memory`."""
        return next(column.type for column in self.columns if column.name == MEMORY)

    @property
    def absent(self) -> tuple[str, ...]:
        """The tracked columns that the copy lacks."""
        return tuple(name for name in self.tracked if name not in self.delivered)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The columns whose differences change a record at the copy's instant."""
        return (*self.compared, *(self.renewed if self.following is None else ()))


# The counted outcomes. The plan has all keys of appearing records, and a few keys of the other outcomes.
APPEARED: Final = "appeared"
CHANGED: Final = "changed"
CLOSED: Final = "closed"
UNCHANGED: Final = "unchanged"
TAKEN_BACK: Final = "taken back"
# Counts by column: records that change in it, records that lose its value, and records that had a value.
DRIVES: Final = "drives "
LOSES: Final = "loses "
HAD: Final = "had "


def rows_at(terms: CopyTerms, slice_: pa.Table) -> pa.Array:
    """A mask of the versions in a slice that are true at the copy's instant.

    If the copy is in order, the slice has only open versions, which are all true.
    """
    if terms.in_order:
        return pa.repeat(True, len(slice_))
    return pa.array((micros(slice_[VALID_FROM]) <= terms.at) & (micros(slice_[VALID_TO]) > terms.at))


def spoilt_rows(terms: CopyTerms, slice_: pa.Table) -> pa.Table:
    """One row for each record with two versions at one instant, or with a version that never began (V119)."""
    (codes,), count = key_codes([keys_by_value(slice_, terms.key)], terms.key)
    if terms.in_order:
        together = [np.ones(len(slice_), bool)]
    else:
        start, end = micros(slice_[VALID_FROM]), micros(slice_[VALID_TO])
        together = [(start <= terms.at) & (end > terms.at), start < terms.at, end == OPEN]
    numbers = (np.bincount(codes[flags], minlength=count) > 1 for flags in together)
    never = np.bincount(codes[np.asarray(slice_[VALID_FROM].is_null())], minlength=count) > 0
    wrong = np.flatnonzero(reduce(np.logical_or, numbers, never))
    return slice_.take(pa.array(last_of(codes, count)[wrong]))


def plan_copy(
    terms: CopyTerms, appeared: pa.Table, changed: tuple[pa.Table, pa.Table], vanished: pa.Table
) -> PartPlan:
    """The rows to add and to remove for records that differ, and their counts by outcome.

    `appeared` are delivered rows. `changed` has the delivered rows and the open versions of the same records,
    which differ in decisive columns. `vanished` are the open versions that end without a new one.
    """
    delivered, stored = changed
    pairs = {name: (delivered[name], stored[name].cast(delivered[name].type)) for name in terms.decisive}
    same = {name: alike(*pair) for name, pair in pairs.items()}
    # Records that differ only in columns without history are renewed in place (V18).
    renewed = reduce(np.logical_and, (same[name] for name in terms.compared), np.ones(len(stored), bool))
    values = {name: delivered[name].filter(pa.array(renewed)) for name in terms.renewed}
    ended = pa.concat_tables([stored.filter(pa.array(~renewed)), vanished])
    begun = pa.concat_tables([appeared, delivered.filter(pa.array(~renewed))])
    parts = [
        (move_ends(ended, np.full(len(ended), terms.at), terms.recorded, terms.memory), True),
        (past_rows(ended, terms.memory), False),
        (begin_versions(begun, terms.at, np.full(len(begun), OPEN), terms.recorded), False),
        (with_columns(stored.filter(pa.array(renewed)), values), True),
    ]
    had = {name: np.asarray(one_array(stored[name]).is_valid()) for name in terms.compared}
    keys = {
        APPEARED: appeared,
        CHANGED: delivered,
        CLOSED: vanished,
        **{
            f"{LOSES}{name}": delivered.filter(pc.and_(pa.array(flags), one_array(delivered[name]).is_null()))
            for name, flags in had.items()
        },
    }
    keys = {kind: rows.select(terms.key) for kind, rows in keys.items() if len(rows) or kind == APPEARED}
    counts = {kind: len(rows) for kind, rows in keys.items()}
    counts |= {f"{HAD}{name}": int(flags.sum()) for name, flags in had.items()}
    counts |= {f"{DRIVES}{name}": int((~flags).sum()) for name, flags in same.items()}
    return PartPlan(
        {**written_rows(parts, stored, terms.columns, ids=terms.ids), APPEARED: keys[APPEARED]},
        {name: count for name, count in counts.items() if count},
        {kind: rows.slice(0, MAX_KEYS) for kind, rows in keys.items() if len(rows)},
    )
