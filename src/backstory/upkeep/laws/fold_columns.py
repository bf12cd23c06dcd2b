"""Which versions are surely what the facts of their record make of the one before (native.md V22 to V24).

That is told of plain lives: of changes, whole or in part, each of which began a version, and of copies. What
else a record remembers, as deletions and silent events, the rule has to look at.
"""

from collections.abc import Iterable
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from backstory.model.remembered import COLUMNS, KIND, Told
from backstory.stores.iceberg.literals import column, quoted
from backstory.upkeep.laws.judged import NEXT, PREFIX, Judged, law_column
from backstory.upkeep.laws.terms import LawTerms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

BEFORE: Final = PREFIX + "before"
LAST_END: Final = PREFIX + "last end"
FACTS: Final = PREFIX + "facts"
# So many instants of copies are asked of each row.
MOST_COPIES: Final = 1_000
# Values that Spark does not compare.
WITHOUT_ORDER: Final = ("map<", "variant")


def is_foldable(rows: "DataFrame", judged: Judged) -> bool:
    """Whether Spark can see of a plain life that it is the fold of its facts."""
    tracked, marks = judged.terms.tracked, judged.terms.marks
    types = [rows.schema[name].dataType.simpleString() for name in tracked]
    ordered = not any(word in each for word in WITHOUT_ORDER for each in types)
    copies = all(each.kind == Told.COPY for each in marks) and len(marks) <= MOST_COPIES
    return judged.valued and bool(tracked) and ordered and copies


def columns_before(judged: Judged, window: "WindowSpec") -> "dict[str, Column]":
    """What `surely_folded` asks of the version before and of the whole record; `window` has it in order."""
    from pyspark.sql import Window
    from pyspark.sql.functions import lag, struct
    from pyspark.sql.functions import max as greatest

    record = window.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    return {
        BEFORE: lag(struct(*map(quoted, judged.terms.tracked))).over(window),
        LAST_END: lag(law_column("end")).over(window),
        FACTS: greatest(law_column(KIND).isNotNull()).over(record),
    }


def surely_folded(terms: LawTerms) -> "Column":
    """Whether a version begins and ends as the facts say; NULL: not surely.

    Without facts and copies nothing says so.
    """
    from pyspark.sql.functions import when

    start, end = law_column("start"), law_column("end")
    before = when(column(LAST_END) == start, column(BEFORE))
    same = _all(column(name).eqNullSafe(before[name]) for name in terms.tracked)
    other = before.isNull() | ~same
    begins = _is_copied(start, terms) | (_is_upsert() & _is_asserted(before, terms))
    ends = end.isNull() | (column(NEXT) == end) | _is_copied(end, terms) | _is_settled(end, terms)
    folded = ((begins & other) | _is_settled(start, terms)) & ends
    return folded if terms.marks else folded | ~column(FACTS)


def _is_upsert() -> "Column":
    from pyspark.sql.functions import coalesce, lit

    return coalesce(law_column(KIND) == Told.UPSERT, lit(False))


def _is_asserted(before: "Column", terms: LawTerms) -> "Column":
    """Whether every value is one that the change has, or that of the version before."""
    from pyspark.sql.functions import array_contains

    return law_column(COLUMNS).isNull() | _all(
        array_contains(law_column(COLUMNS), terms.numbers[name]) | column(name).eqNullSafe(before[name])
        for name in terms.tracked
    )


def _is_copied(instant: "Column", terms: LawTerms) -> "Column":
    return instant.isin([each.at for each in terms.marks])


def _is_settled(instant: "Column", terms: LawTerms) -> "Column":
    from pyspark.sql.functions import lit

    if terms.settled is None:
        return lit(False)
    first, last = terms.settled
    return (instant <= last) & (lit(True) if first is None else instant >= first)


def _all(conditions: "Iterable[Column]") -> "Column":
    return reduce(and_, conditions)
