"""How many records a load finds in each case of the table, by the comparison."""

from collections import Counter
from typing import TYPE_CHECKING

from backstory.stores.iceberg.literals import column
from backstory.strategies.scd2.frames.cases import PAST
from backstory.strategies.scd2.transitions import Case, Now, Past, Tally
from backstory.strategies.sift.join import Outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def tally(found: Outcomes, begun: "DataFrame") -> Tally:
    """The records of base and history by their cases."""
    cases: Counter[Case] = Counter(
        {
            (Past.OPEN, Now.SAME): found.same,
            (Past.OPEN, Now.OTHER): found.changed,
            (Past.OPEN, Now.ABSENT): found.vanished,
            (Past.OPEN, Now.SPARED): found.kept,
            (Past.NOTHING, Now.PRESENT): found.appeared,
        }
    )
    if found.appeared:
        known = begun.where(column(PAST).isin(Past.INTERRUPTED.name, Past.CLOSED.name))
        for past, number in known.groupBy(column(PAST)).count().collect():
            cases[Past[past], Now.PRESENT] += number
            cases[Past.NOTHING, Now.PRESENT] -= number
    return Tally(cases)
