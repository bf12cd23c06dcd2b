"""The event time of delivered rows: an instant, a day, or a calendar year (decisions O5 and O13)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from backstory.errors import Refused
from backstory.spark.versions import try_cast

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

YEAR: Final = r"^[1-9][0-9]{3}$"
TIME: Final = r"[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?"
RFC3339: Final = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}({TIME})?$"
ZONED: Final = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{TIME}([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})$"
# The years 0001 to 9999, since 1970-01-01: Python has no others, and instants in the year 55840 are mistakes.
LAST_SECOND: Final = 253_402_300_799
INSTANTS: Final = (-62_135_596_800_000_000, LAST_SECOND * 1_000_000 + 999_999)
DAYS: Final = (-719_162, 2_932_896)
# Smaller numbers are more likely years, days or mistakes than UNIX seconds, greater ones milliseconds.
SECONDS: Final = (100_000_000, LAST_SECOND)
HINT: Final = (
    "Convert it to a time in preprocess: make_date(year, 1, 1), timestamp_seconds(x), timestamp_millis(x), "
    "to_timestamp(x)."
)


@dataclass(frozen=True, slots=True)
class EventTime:
    """The event time as a column, whether it is a day, and which rows have one that cannot be read."""

    value: "Column"
    dated: bool
    unreadable: "Column | None" = None


def event_time(
    name: str, column: "Column", type_: "DataType", *, inferred: bool, dated: bool | None = None
) -> EventTime:
    """The event time that a column holds; `inferred` says that nobody declared its type.

    `dated` says that the dataset's event times are days, or instants; None if that is open. A day that
    nobody declared is its first instant, where instants are kept. Raises Refused for a type that holds no
    times (section 2.1, step 1), and for the other one of the two.
    """
    found = _event_time(name, column, type_, inferred=inferred, dated=bool(dated))
    if dated is None or found.dated is dated:
        return found
    if found.dated and inferred:
        return _within_years(column, in_utc(column.cast("timestamp_ntz")))
    expected = "date" if dated else "timestamp"
    raise Refused(
        "incompatible-schema",
        f"The event-time column {name} has the wrong type: expected {expected}, but found "
        f"{type_.simpleString()}.",
        "Cast it in preprocess, or fix the source.",
        [name],
    )


def _event_time(name: str, column: "Column", type_: "DataType", *, inferred: bool, dated: bool) -> EventTime:
    from pyspark.sql.functions import lit
    from pyspark.sql.types import (
        DateType,
        IntegralType,
        NullType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    match type_:
        case DateType():
            return _within_years(column, column, dated=True)
        case TimestampType():
            return _within_years(column, column)
        case TimestampNTZType():
            return _within_years(column, in_utc(column))
        case NullType():
            return EventTime(lit(None).cast("date" if dated else "timestamp"), dated=dated)
        case IntegralType():
            return _number(column, inferred=inferred)
        case StringType():
            return _text(column, inferred=inferred)
        case _:
            raise Refused(
                "bad-input-schema",
                f"The event-time column {name} is of type {type_.simpleString()}, not a date or timestamp.",
                HINT,
                [name],
            )


def in_utc(naive: "Column") -> "Column":
    """Times without a zone as instants, in whatever zone the session is."""
    from pyspark.sql.functions import concat, lit

    return concat(naive.cast("string"), lit("Z")).cast("timestamp")


def _within_years(column: "Column", value: "Column", *, dated: bool = False) -> EventTime:
    """What the column says; unreadable where that is nothing, or of a year before 0001 or after 9999."""
    from pyspark.sql.functions import unix_date, unix_micros, when

    good = unix_date(value).between(*DAYS) if dated else unix_micros(value).between(*INSTANTS)
    value = when(good, value)
    return EventTime(value, dated, unreadable=column.isNotNull() & value.isNull())


def _year(column: "Column") -> "Column":
    from pyspark.sql.functions import lit, make_timestamp_ltz

    one, none = lit(1), lit(0)
    return make_timestamp_ltz(column.cast("int"), one, one, none, none, none, lit("UTC"))


def _number(column: "Column", *, inferred: bool) -> EventTime:
    """A four-digit number is a year; a large one UNIX seconds, where nobody declared it."""
    from pyspark.sql.functions import timestamp_seconds, when

    year = column.between(1000, 9999)
    seconds = column.between(*SECONDS)
    value = when(year, _year(when(year, column)))
    if inferred:
        value = value.when(seconds, timestamp_seconds(column))
    good = year | seconds if inferred else year
    return EventTime(value, dated=False, unreadable=column.isNotNull() & ~good)


def _text(column: "Column", *, inferred: bool) -> EventTime:
    """A text of four digits is a year; one of RFC 3339 an instant, where nobody declared it."""
    from pyspark.sql.functions import when

    year = column.rlike(YEAR)
    value = when(year, _year(when(year, column)))
    if inferred:
        value = value.when(column.rlike(ZONED), try_cast(column, "timestamp"))
        value = value.when(column.rlike(RFC3339), in_utc(try_cast(column, "timestamp_ntz")))
    return _within_years(column, value)
