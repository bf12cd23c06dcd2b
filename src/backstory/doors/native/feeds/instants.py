"""The time of a change, and the values that order changes of one time (V45 to V47)."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.local_times import local_times
from backstory.doors.native.feeds.options import Expression
from backstory.errors import Refused, UsageError
from backstory.formats.rows import arrow_type
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.model.types import ColumnType, Kind

INSTANT: Final = ColumnType(Kind.UTC_DATETIME)
DAY: Final = r"^\s*\d{4}-\d{2}-\d{2}$"
_NOT_WRITTEN: Final = "Nothing was written;"


def refuse_no_instant(type_: pa.DataType, expression: Expression, *, zoned: bool) -> None:
    """Raise UsageError for a type that holds no times, or times without a zone.

    `zoned` says that times without one are in UTC, as texts of files are.
    """
    if pa.types.is_timestamp(type_) and type_.tz is None and not zoned:
        raise UsageError(
            "naive-time",
            f"{expression} has times without a zone.",
            f"Give their zone: `sequence_by=[\"to_utc_timestamp({expression}, 'Europe/Paris')\"]`.",
        )
    known = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_string, pa.types.is_null)
    if not any(is_(type_) for is_ in known):
        raise UsageError(
            "no-instant",
            f"{expression} has values of type {type_}, and not times.",
            f'Make them times: `sequence_by=["timestamp_millis({expression})"]`; a log position is second.',
        )


def instants_of(values: pa.ChunkedArray, expression: Expression, *, counted: bool) -> pa.Array:
    """The times as instants; local ones by their zone, a date is its first one.

    A text is ISO 8601, without an offset in UTC.

    Raises Refused `unreadable-instant` for a text that is none, with its row where rows are `counted`.
    """
    if (local := local_times(expression)) is not None:
        return local.instants(instants_of(values, local.time, counted=counted), counted=counted)
    one = values.combine_chunks()
    if pa.types.is_string(one.type):
        day = pc.match_substring_regex(one, DAY)
        try:
            return parse(pc.if_else(day, pc.binary_join_element_wise(one, "T00:00:00Z", ""), one), INSTANT)
        except UnreadableCell as cell:
            raise Refused(
                "unreadable-instant",
                f"{f'Row {cell.row + 1}' if counted else 'A row'} of the source has no time in {expression}.",
                f"{_NOT_WRITTEN} write times as 2026-01-31T12:00:00Z.",
            ) from None
    if pa.types.is_timestamp(one.type) and one.type.tz is None:
        one = one.cast(pa.timestamp("us")).cast(pa.int64())  # in UTC
    return one.cast(arrow_type(INSTANT))
