"""The versions that close, whole, with their end (section 9.1)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from backstory.model.layout import ENDED, STATE
from backstory.model.places import FILE, POSITION
from backstory.stores.iceberg.literals import column
from backstory.strategies.scd2.frames.cases import ACTION, closed_state, side
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.sift.join import CHANGED, STORED, VANISHED, Outcomes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A column of a model has no blank in its name, and may be called as the comparison calls one of its own.
IN, PLACE, WHY = "closing file", "closing position", "closing action"


def closes(pair: Pair, found: Outcomes, versions: "DataFrame", sql: Callable[[str], "Column"]) -> "DataFrame":
    """The open versions, out of all, whose record changed or vanished, with their end."""
    ends = found.actions.where(column(ACTION).isin(CHANGED, VANISHED))
    file, position = side(STORED, FILE).alias(IN), side(STORED, POSITION).alias(PLACE)
    places = ends.select(column(ACTION).alias(WHY), file, position)
    here = (column(FILE) == column(IN)) & (column(POSITION) == column(PLACE))
    rows = versions.where(column(ENDED).isNull()).select("*", FILE, POSITION).join(places, here)
    ending = {name: sql(value) for name, value in pair.ending("NULL").items()}
    return rows.withColumns(ending | {STATE: closed_state(pair, WHY)})
