"""A slice that somebody spoilt, who wrote past every door, is refused before anything is planned on it."""

import numpy as np
import pyarrow as pa

from backstory.errors import MAX_KEYS, Refused
from backstory.model.keys import key_text
from backstory.model.layout import ACTIVE, END, START
from backstory.model.schema import Shape
from backstory.strategies.keys import key_codes
from backstory.strategies.versions.spans import TRUE
from backstory.strategies.versions.times import NO_TIME, micros


def refuse_spoilt(stored: pa.Table, shape: Shape | None) -> None:
    """Raise Refused if two stored versions of a record are open, share a start or cover one instant.

    Or if one has no start: no door writes such a row.

    Without a shape nothing is asked: a sender that brings versions out of order marks his table
    (`backstory.disorder`), and may go on.
    """
    if shape is None or not stored.num_rows:
        return
    (codes,), _ = key_codes([stored], shape.key)
    start, end = micros(stored[START]), micros(stored[END])
    active = np.asarray(stored[ACTIVE].cast(pa.int8()).fill_null(0).to_numpy()) == TRUE
    order = np.lexsort((end, start, codes))
    never = order[start[order] == NO_TIME]
    order = order[start[order] != NO_TIME]
    before, after = order[:-1], order[1:]
    covered = active[before] | (end[before] > start[after]) | (start[before] == start[after])
    wrong = np.concatenate([before[(codes[before] == codes[after]) & covered], never])
    if len(wrong):
        rows = stored.select(list(shape.key)).take(pa.array(wrong[:MAX_KEYS]))
        told = {key_text(shape.source_key, list(row.values())) for row in rows.to_pylist()}
        raise Refused(
            "spoilt-table",
            f"{shape.table} holds versions of a record that overlap or have no start: something other than "
            "backstory wrote to it.",
            f"Nothing was written; `backstory repair {shape.table}` shows the repair, and `apply=True` "
            "makes it.",
            sorted(told),
        )
