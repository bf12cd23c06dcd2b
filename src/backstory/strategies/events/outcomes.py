"""What becomes of each row: the rules of each strategy, as columns."""

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

from backstory.stores.iceberg.literals import literal
from backstory.strategies.events.columns import (
    AFTER,
    BEFORE,
    DELIVERED,
    LOGGED,
    OP,
    PLACE,
    ROW,
    SOURCE,
    STORED,
    TIME,
    field,
)
from backstory.strategies.events.terms import (
    ABSENT,
    CONFLICTING,
    KNOWN_CONFLICT,
    NULL_KEY,
    NULL_SEQUENCE,
    PRESENT,
    UNLIKE,
    UNPAIRED,
    WRONG_OP,
    Moment,
    OnConflict,
    Op,
    Strategy,
    Terms,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WHAT: Final = "what"


def classify(rows: "DataFrame", terms: Terms, moment: Moment) -> "DataFrame":
    """The rows with `what` becomes of each.

    It is appended, corrected, retracted, unchanged, conflicts, told, nothing, or a problem; a correction or
    a retraction is one of the event in `stored`.
    """
    rules = {
        Strategy.APPEND: _append,
        Strategy.LEDGER: _ledger,
        Strategy.SNAPSHOT: _snapshot,
        Strategy.UPSERT: _upsert,
        Strategy.CHANGELOG: _changelog,
    }
    if terms.strategy is Strategy.CHANGELOG and terms.strict:
        rows = _with_stored_time(rows, moment)
    return rows.withColumn(WHAT, _first(rules[terms.strategy](terms, moment)))


Rules = Mapping[str | None, "Column"]


def _first(rules: "Mapping[str, Column]") -> "Column":
    """The name of the first condition that holds."""
    from pyspark.sql import functions

    names = list(rules)
    chosen = functions.when(rules[names[0]], names[0])
    return reduce(lambda built, name: built.when(rules[name], name), names[1:], chosen)


def _delivered() -> "Column":
    from pyspark.sql.functions import col

    return col(SOURCE) == DELIVERED


def _null_key(terms: Terms) -> "Column":
    from pyspark.sql.functions import col, lit

    missing = reduce(lambda a, b: a | b, (field(ROW, name).isNull() for name in terms.key), lit(False))
    return missing | col(TIME).isNull() if terms.time_required else missing


def _is_repeat() -> "Column":
    """Whether the row before is a delivered one of the same record, with the same content."""
    from pyspark.sql.functions import col

    before = col(BEFORE)
    return _follows() & before[ROW].eqNullSafe(col(ROW)) & before[TIME].eqNullSafe(col(TIME))


def _follows() -> "Column":
    from pyspark.sql.functions import col, lit

    return col(BEFORE)[SOURCE].eqNullSafe(lit(DELIVERED))


def _known() -> "Column":
    """Whether the log has the record, and has not retracted it."""
    from pyspark.sql.functions import col

    return col(STORED).isNotNull() & (col(STORED)[OP] != Op.RETRACT)


def _same(terms: Terms) -> "Column":
    """Whether nothing changed; an event time counts only where the new row has one."""
    from pyspark.sql.functions import col, lit

    stored = col(STORED)
    if terms.compare is None:
        equal = stored[ROW].eqNullSafe(col(ROW))
    else:
        pairs = (stored[ROW].getField(name).eqNullSafe(field(ROW, name)) for name in terms.compare)
        equal = reduce(lambda a, b: a & b, pairs, lit(True))
    if not terms.compare_time:
        return equal
    return equal & (col(TIME).isNull() | stored[TIME].eqNullSafe(col(TIME)))


def _append(_terms: Terms, _moment: Moment) -> "dict[str, Column]":
    return {"appended": _delivered()}


def _ledger(terms: Terms, _moment: Moment) -> "dict[str, Column]":
    from pyspark.sql.functions import lit

    again = {
        OnConflict.IGNORE: "conflicts",
        OnConflict.ERROR: KNOWN_CONFLICT,
        OnConflict.CORRECT: "corrected",
    }[terms.on_conflict]
    # Each known row is counted; of those that make events one stands for all that are like it.
    makes = lit(True) if terms.on_conflict is OnConflict.CORRECT else ~_known()
    return {
        NULL_KEY: _delivered() & _null_key(terms),
        CONFLICTING: _delivered() & makes & _follows() & ~_is_repeat(),
        "nothing": ~_delivered() | (makes & ~(_known() & _same(terms)) & _is_repeat()),
        "unchanged": _known() & _same(terms),
        again: _known(),
        "appended": _delivered(),
    }


def _snapshot(terms: Terms, _moment: Moment) -> "dict[str, Column]":
    from pyspark.sql.functions import col

    is_last = (col(SOURCE) == LOGGED) & col(AFTER).isNull()
    return {
        NULL_KEY: _delivered() & _null_key(terms),
        "retracted": is_last & _known(),
        "nothing": ~_delivered() | _is_repeat(),
        CONFLICTING: _follows(),
        "appended": ~_known(),
        "unchanged": _same(terms),
        "corrected": _delivered(),
    }


def _upsert(terms: Terms, _moment: Moment) -> "dict[str, Column]":
    from pyspark.sql.functions import col, lit

    wrong = ~col(OP).isin(Op.APPEND, Op.RETRACT, Op.CORRECT_TO) | col(OP).isNull()
    unordered = field(ROW, terms.sequence).isNull() if terms.sequence else lit(False)
    retracts = col(OP) == Op.RETRACT
    return {
        NULL_KEY: _delivered() & _null_key(terms),
        WRONG_OP: _delivered() & wrong,
        NULL_SEQUENCE: _delivered() & unordered,
        "nothing": ~_delivered() | col(AFTER).isNotNull(),
        "absent": retracts & ~_known(),
        "retracted": retracts,
        "appended": ~_known(),
        "unchanged": _same(terms),
        "corrected": _delivered(),
    }


def _changelog(terms: Terms, moment: Moment) -> "dict[str, Column]":
    from pyspark.sql.functions import col

    wrong = ~col(OP).isin(*Op) | col(OP).isNull()
    if not terms.strict:
        return {WRONG_OP: _delivered() & wrong, "told": _delivered()}
    before, after, op = col(BEFORE), col(AFTER), col(OP)
    present = before.isNotNull() & (before[OP] != Op.RETRACT)
    repeats = before[ROW].eqNullSafe(col(ROW)) & col(TIME).eqNullSafe(_time_of(BEFORE, moment))
    takes = op.isin(Op.RETRACT, Op.CORRECT_FROM)
    next_is_to = (after[OP] == Op.CORRECT_TO) & (after[PLACE] == col(PLACE) + 1)
    before_is_from = _follows() & (before[OP] == Op.CORRECT_FROM) & (before[PLACE] == col(PLACE) - 1)
    return {
        NULL_KEY: _delivered() & _null_key(terms),
        WRONG_OP: _delivered() & wrong,
        "nothing": ~_delivered(),
        PRESENT: (op == Op.APPEND) & present,
        ABSENT: takes & ~present,
        UNLIKE: takes & ~repeats,
        UNPAIRED: ((op == Op.CORRECT_FROM) & ~_true(next_is_to))
        | ((op == Op.CORRECT_TO) & ~_true(before_is_from)),
        "told": _delivered(),
    }


def _with_stored_time(rows: "DataFrame", moment: Moment) -> "DataFrame":
    """A retraction without an event time repeats the stored one."""
    from pyspark.sql.functions import coalesce, col, when

    takes = col(OP).isin(Op.RETRACT, Op.CORRECT_FROM) & _delivered()
    return rows.withColumn(TIME, when(takes, coalesce(TIME, _time_of(BEFORE, moment))).otherwise(col(TIME)))


def _time_of(side: str, moment: Moment) -> "Column":
    from pyspark.sql.functions import coalesce, col

    return coalesce(col(side)[TIME], literal(moment.fallback))


def _true(condition: "Column") -> "Column":
    """NULL is no."""
    from pyspark.sql.functions import coalesce, lit

    return coalesce(condition, lit(False))
