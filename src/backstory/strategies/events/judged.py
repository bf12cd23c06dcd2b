"""What is known of the rows of a log and a delivery side by side, as Spark's columns."""

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from backstory.stores.iceberg.literals import literal
from backstory.strategies.events.columns import (
    AFTER,
    BEFORE,
    DELIVERED,
    OP,
    PLACE,
    ROW,
    SOURCE,
    STORED,
    TIME,
    field,
)
from backstory.strategies.events.outcomes import outcomes
from backstory.strategies.events.terms import EventTerms, Moment, Op, Strategy

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WHAT: Final = "what"


def classify(rows: "DataFrame", terms: EventTerms, moment: Moment) -> "DataFrame":
    """The rows with `what` becomes of each."""
    from pyspark.sql import functions

    if terms.strategy is Strategy.CHANGELOG and terms.strict:
        rows = _with_stored_time(rows, moment)
    rules = outcomes(_Judged(terms, moment), terms)
    (first, *names) = rules
    chosen = functions.when(rules[first], first)
    return rows.withColumn(WHAT, reduce(lambda built, name: built.when(rules[name], name), names, chosen))


@dataclass(frozen=True, slots=True)
class _Judged:
    """The facts of rows that `align` laid out; none that a rule turns round is ever NULL."""

    terms: EventTerms
    moment: Moment

    def does(self, *operations: Op) -> "Column":
        from pyspark.sql.functions import col

        return _true(col(OP).isin(*operations))

    @property
    def delivered(self) -> "Column":
        from pyspark.sql.functions import col

        return col(SOURCE) == DELIVERED

    @property
    def without_key(self) -> "Column":
        from pyspark.sql.functions import col, lit

        missing = reduce(
            lambda a, b: a | b, (field(ROW, name).isNull() for name in self.terms.key), lit(False)
        )
        return missing | col(TIME).isNull() if self.terms.time_required else missing

    @property
    def without_place(self) -> "Column":
        from pyspark.sql.functions import lit

        return field(ROW, self.terms.sequence).isNull() if self.terms.sequence else lit(False)

    @property
    def follows(self) -> "Column":
        from pyspark.sql.functions import col, lit

        return col(BEFORE)[SOURCE].eqNullSafe(lit(DELIVERED))

    @property
    def repeats(self) -> "Column":
        from pyspark.sql.functions import col

        before = col(BEFORE)
        return self.follows & before[ROW].eqNullSafe(col(ROW)) & before[TIME].eqNullSafe(col(TIME))

    @property
    def followed(self) -> "Column":
        from pyspark.sql.functions import col

        return col(AFTER).isNotNull()

    @property
    def known(self) -> "Column":
        return _there(STORED)

    @property
    def same(self) -> "Column":
        from pyspark.sql.functions import col, lit

        stored = col(STORED)
        if self.terms.compare is None:
            equal = stored[ROW].eqNullSafe(col(ROW))
        else:
            pairs = (stored[ROW].getField(name).eqNullSafe(field(ROW, name)) for name in self.terms.compare)
            equal = reduce(lambda a, b: a & b, pairs, lit(True))
        if not self.terms.compare_time:
            return equal
        return equal & (col(TIME).isNull() | stored[TIME].eqNullSafe(col(TIME)))

    @property
    def present(self) -> "Column":
        return _there(BEFORE)

    @property
    def resembles(self) -> "Column":
        from pyspark.sql.functions import col

        before = col(BEFORE)
        return before[ROW].eqNullSafe(col(ROW)) & col(TIME).eqNullSafe(_time_of(BEFORE, self.moment))

    @property
    def paired(self) -> "Column":
        from pyspark.sql.functions import col

        before, after, place = col(BEFORE), col(AFTER), col(PLACE)
        goes_on = (after[OP] == Op.CORRECT_TO) & (after[PLACE] == place + 1)
        ends = self.follows & (before[OP] == Op.CORRECT_FROM) & (before[PLACE] == place - 1)
        begins = self.does(Op.CORRECT_FROM)
        return (begins & _true(goes_on)) | (~begins & _true(ends))


def _with_stored_time(rows: "DataFrame", moment: Moment) -> "DataFrame":
    """A retraction without an event time repeats the stored one."""
    from pyspark.sql.functions import coalesce, col, when

    takes = col(OP).isin(Op.RETRACT, Op.CORRECT_FROM) & (col(SOURCE) == DELIVERED)
    return rows.withColumn(TIME, when(takes, coalesce(TIME, _time_of(BEFORE, moment))).otherwise(col(TIME)))


def _there(side: str) -> "Column":
    from pyspark.sql.functions import col

    return col(side).isNotNull() & _true(col(side)[OP] != Op.RETRACT)


def _time_of(side: str, moment: Moment) -> "Column":
    from pyspark.sql.functions import coalesce, col

    return coalesce(col(side)[TIME], literal(moment.fallback))


def _true(condition: "Column") -> "Column":
    """NULL is no."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(condition, lit(False))
