"""The cases of the table as columns: what the base has now of an open version, a record's past."""

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING

from backstory.stores.iceberg.literals import column, quoted
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.transitions import TRANSITIONS, Now, Past, State

if TYPE_CHECKING:
    from pyspark.sql import Column

# A column of a model has no blank in its name.
KEY, HASH, PAST = "record key", "record hash", "record past"
# What the comparison calls its rows by.
ACTION = "action"


def closed_state(pair: Pair, action: str) -> "Column":
    """The state as which an open version ends, by the column that says what the base has of it now."""
    told = (Now.OTHER, Now.ABSENT)
    return _by(action, ((now.name, TRANSITIONS[Past.OPEN, now].closes) for now in told), pair)


def begun_state(pair: Pair) -> "Column":
    """The state as which a version begins, by the record's past."""
    present = {past: Now.OTHER if past is Past.OPEN else Now.PRESENT for past in Past}
    return _by(PAST, ((past.name, TRANSITIONS[past, now].begins) for past, now in present.items()), pair)


def _by(name: str, states: Iterable[tuple[str, State | None]], pair: Pair) -> "Column":
    from pyspark.sql.functions import lit, when

    cases = [(column(name) == case, lit(pair.words[state])) for case, state in states if state is not None]
    return reduce(lambda chain, case: chain.when(*case), cases[1:], when(*cases[0]))


def side(struct: str, name: str) -> "Column":
    """A column of one side of the comparison."""
    from pyspark.sql.functions import col

    return col(f"{struct}.{quoted(name)}")
