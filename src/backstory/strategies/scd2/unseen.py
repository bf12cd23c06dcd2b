"""Changes that a hash does not see, because it has the texts of values side by side (section 2.4)."""

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pyarrow as pa

from backstory.model.layout import ROW_HASH
from backstory.strategies.matching import take_rows
from backstory.strategies.scd2.parts import UNSEEN
from backstory.strategies.scd2.terms import LoadTerms
from backstory.strategies.values import alike


def unseen_changes(
    terms: LoadTerms, staged: pa.Table, stored: pa.Table, changed: tuple[pa.Array, pa.Array]
) -> Mapping[str, int]:
    """Of changed rows, by their places on both sides: those with one hash, by each column that differs."""
    if not terms.unsure or not len(changed[0]):
        return {}
    names = [ROW_HASH, *terms.unsure]
    sides = zip((staged, stored), changed, strict=True)
    now, before = (take_rows(rows.select(names), places) for rows, places in sides)
    same = pa.array(alike(now[ROW_HASH], before[ROW_HASH]))
    now, before = now.filter(same), before.filter(same)
    found = {
        name: int((~_same_text(now[name], before[name], scale)).sum()) for name, scale in terms.unsure.items()
    }
    return {f"{UNSEEN}{name}": count for name, count in found.items() if count}


def _same_text(now: pa.ChunkedArray, before: pa.ChunkedArray, scale: int | None) -> np.ndarray:
    same = alike(now, before)
    if scale is None:
        return same
    unit = Decimal(1).scaleb(-scale)
    for place in np.flatnonzero(~same):
        values = (now[place].as_py(), before[place].as_py())
        if None not in values:
            one, other = (Decimal(repr(value)).quantize(unit, ROUND_HALF_UP) for value in values)
            same[place] = one == other
    return same
