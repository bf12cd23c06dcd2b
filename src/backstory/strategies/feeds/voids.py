"""Rows that silence marks for the keys of a restatement, and those that do so no longer (native.md V72)."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from backstory.model.layout import VALID_FROM
from backstory.model.remembered import OWN_TIME, SCOPE, Role, Told
from backstory.strategies.copies.rows import memory_field, micros, withdraw_facts
from backstory.strategies.feeds.marks import marks_of
from backstory.strategies.feeds.records import is_of, sequence_codes, sequences
from backstory.strategies.feeds.rows import Remembered, kinds, rows_of, values_at
from backstory.strategies.feeds.touched import Records


def voids(records: Records) -> Iterator[tuple[pa.Table, bool]]:
    """The rows that come, and whether they stand for stored ones, whose places they have."""
    back = np.flatnonzero(records.speaks_again)
    if len(back):
        rows = records.rows.take(pa.array(back))
        yield withdraw_facts(rows, records.terms.recorded, records.terms.memory), True
    silenced = records.arrival.silenced
    if not len(silenced):
        return
    terms, named = records.terms, np.flatnonzero(records.named)
    codes = sequence_codes(
        terms, [(sequences(silenced), len(silenced)), (sequences(records.rows), len(records.rows))]
    )
    marks = marks_of(silenced, codes[0], records.stored, codes[1])
    record, mark = np.repeat(named, len(silenced)), np.tile(np.arange(len(silenced)), len(named))
    new = marks.speaks(record, mark)
    record, mark = record[new], mark[new]
    taken = silenced.take(pa.array(mark))
    # The void of a truncate names no columns, where that of a copy has no list.
    ends, nothing = pa.array(np.zeros(len(taken) + 1, np.int32)), pa.array([], pa.int32())
    columns = pa.ListArray.from_arrays(ends, nothing, mask=pa.array(~is_of(taken, Told.TRUNCATE)))
    time = memory_field(taken, OWN_TIME)
    told = Remembered(
        kinds(len(taken), Told.VOID), sequences(taken), columns, memory_field(taken, SCOPE), time, Role.FACT
    )
    at = micros(taken[VALID_FROM])
    yield rows_of(terms, values_at(records.pool, terms.key, records.row_of[record]), at, at, told), False
