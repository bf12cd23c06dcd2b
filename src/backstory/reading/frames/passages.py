"""What became of records between two times, on Spark: the meaning is that of `reading/rules/passages.py`."""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from backstory.model.layout import VALID_FROM, VALID_TO
from backstory.reading.rules.passages import PASSED, RETURNED, REVERTED
from backstory.stores.iceberg.literals import column
from backstory.strategies.comparable import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# No column of a source is called so.
AWAY: Final = "backstory: away"
OTHER: Final = "backstory: other than before"


def with_passages(
    sides: "DataFrame", key: Sequence[str], names: Sequence[str], *, timed: bool
) -> "DataFrame":
    """The versions with what each says of its record's life: whether it was gone after, and has changed."""
    from pyspark.sql import Window
    from pyspark.sql.functions import coalesce, lag, lead, lit

    parted = [column(name) for name in (*key, *([VALID_FROM] if timed else []))]
    over = Window.partitionBy(*parted).orderBy(column(VALID_FROM))

    def unlike(name: str) -> "Column":
        value = comparable(column(name), sides.schema[name].dataType)
        return ~value.eqNullSafe(lag(value).over(over))

    follows = lag(column(VALID_FROM)).over(over).isNotNull()
    values = [unlike(name) for name in names if name not in key]
    changed = follows & reduce(or_, values) if values else lit(False)
    gone = coalesce(column(VALID_TO) < lead(column(VALID_FROM)).over(over), lit(False))
    return sides.withColumns({AWAY: gone, OTHER: changed})


def change_between(there: "Column", away: "Column", other: "Column") -> "Column":
    """What happened to a record that is the same at both ends; NULL for nothing."""
    from pyspark.sql.functions import when

    return when(~there, PASSED).when(away, RETURNED).when(other, REVERTED)
