"""The order of changes: instants, local times, and the further expressions of a table (V13, V45 to V47).

A local time that clocks repeat is two instants, and a time that they skip is no instant.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.options import ApplyRequest, Expression
from backstory.errors import Refused, UsageError, bad_option
from backstory.formats.rows import arrow_type
from backstory.formats.values.cells import UnreadableCell, parse
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import ORDERED_BY, SEQUENCE

_WORD: Final = re.compile(r"\bto_utc_timestamp\b", re.IGNORECASE)
_LOCAL: Final = re.compile(
    r"\s*to_utc_timestamp\s*\(\s*(?P<time>.+?)\s*,\s*'(?P<zone>[^',]+)'"
    r"\s*(?:,\s*'(?P<side>earlier|later)'\s*)?\)\s*",
    re.IGNORECASE | re.DOTALL,
)
_SIDES: Final = {"earlier": "earliest", "later": "latest"}

INSTANT: Final = ColumnType(Kind.UTC_DATETIME)
DAY: Final = r"^\s*\d{4}-\d{2}-\d{2}$"
_NOT_WRITTEN: Final = "Nothing was written;"
# The part of a position with the number of the log; a table can have several logs in turn.
LOG_NUMBER: Final = "log"


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """Local times of a zone. `side` chooses between two instants.

    If it is None, ambiguous times are refused.
    """

    expression: str
    time: str
    zone: str
    side: str | None

    def instants(self, times: pa.Array, *, counted: bool) -> pa.Array:
        """The instants of local times. Their own zone is ignored: 02:10 means 02:10 on the zone's clocks.

        If a side is set, a skipped time becomes the first instant after the gap. Otherwise skipped and
        repeated times raise Refused, with their row if rows are `counted`.
        """
        clock = pa.timestamp("us")
        local = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(clock)
        try:
            if self.side is not None:
                return pc.assume_timezone(
                    local, self.zone, ambiguous=_SIDES[self.side], nonexistent="latest"
                ).cast(pa.timestamp("us", "UTC"))
            first = pc.assume_timezone(local, self.zone, ambiguous="earliest", nonexistent="earliest")
            last = pc.assume_timezone(local, self.zone, ambiguous="latest", nonexistent="latest")
        except pa.ArrowInvalid:
            raise self._unknown_zone() from None
        unsure = pc.not_equal(first, last)
        if pc.any(unsure).as_py():
            # A skipped time was moved: the zone's clocks show another time at its instant.
            row = pc.index(unsure, True).as_py()
            skipped = pc.local_timestamp(last)[row] != local[row]
            raise self._time_error(row, counted=counted, skipped=skipped)
        return first.cast(pa.timestamp("us", "UTC"))

    def _unknown_zone(self) -> Exception:
        return bad_option(f"{self.zone} is not a time zone.", "Name one such as `Europe/Paris`.")

    def _time_error(self, row: int, *, counted: bool, skipped: bool) -> Refused:
        where = f"Row {row + 1} of the source" if counted else "A row of the source"
        call = f"to_utc_timestamp({self.time}, '{self.zone}', 'earlier')"
        takes = "the first instant after the gap" if skipped else "the earlier one (or `'later'`)"
        return Refused(
            "skipped-time" if skipped else "repeated-time",
            f"{where} has a time in {self.expression} that is {'no instant' if skipped else 'two instants'}: "
            f"clocks in {self.zone} {'skip' if skipped else 'repeat'} it.",
            "Nothing was written; write times with their offset at the source, or take "
            f'{takes} with `sequence_by=["{call}"]`, and order changes of that hour by further columns.',
        )


def local_times(expression: Expression) -> LocalTimes | None:
    """The local times of an expression, or None if it has none.

    Raises UsageError if they are part of a larger expression, where Spark would guess the instant.
    """
    if not _WORD.search(str(expression)):
        return None
    text = expression if isinstance(expression, str) else ""  # a column of Spark has no text
    match = _LOCAL.fullmatch(text)
    if match is None or _WORD.search(match["time"]) or not _is_one(match["time"]):
        raise bad_option(
            f"{expression} has local times in a larger expression; some of them are two instants, or none.",
            "Let `to_utc_timestamp(time, 'Europe/Paris')` be the whole expression, as a string, with the "
            "name of a zone.",
        )
    return LocalTimes(text, match["time"], match["zone"], match["side"] and match["side"].lower())


def only_adds_side(stored: str, requested: str) -> bool:
    """Whether the new expression only adds a side to the local times of the stored expression."""
    before, now = local_times(stored), local_times(requested)
    if before is None or now is None or before.side is not None:
        return False
    return (before.time, before.zone) == (now.time, now.zone)


def _is_one(text: str) -> bool:
    """Whether a string is a single expression: no top-level commas, and balanced brackets."""
    depth = 0
    for letter in re.sub(r"'[^']*'", "", text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0 or (letter == "," and not depth):
            return False
    return depth == 0


def refuse_no_instant(type_: ColumnType, expression: Expression, *, zoned: bool) -> None:
    """Raise UsageError for types that are not times, and for times without a zone unless `zoned` is true.

    If `zoned` is true, times without a zone are in UTC, as strings in files are.
    """
    if type_.kind is Kind.NAIVE_DATETIME and not zoned:
        raise UsageError(
            "naive-time",
            f"{expression} has times without a zone.",
            f"Give their zone: `sequence_by=[\"to_utc_timestamp({expression}, 'Europe/Paris')\"]`.",
        )
    if type_.kind not in {Kind.NAIVE_DATE, Kind.NAIVE_DATETIME, Kind.UTC_DATETIME, Kind.STRING}:
        raise UsageError(
            "no-instant",
            f"{expression} has values of type {type_}, which are not times.",
            f'Convert them by their unit: `sequence_by=["timestamp_millis({expression})"]`, '
            "`timestamp_seconds` or `timestamp_micros`; a log position comes second.",
        )


def instants_of(values: pa.ChunkedArray, expression: Expression, *, counted: bool) -> pa.Array:
    """The times as instants: local times in their zone, dates as their first instant in UTC.

    Strings are ISO 8601, in UTC if they have no offset. Raises Refused `unreadable-instant` for other
    strings, with their row if rows are `counted`.
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


@dataclass(frozen=True, slots=True)
class Ordering:
    """The expressions of the order, the time first, and the types of the further expressions.

    In messages of a `log`, the further expressions are the position in it, after the number of the log.
    """

    expressions: tuple[str, ...]
    types: tuple[ColumnType, ...]
    log: bool = False

    @property
    def memory_part(self) -> tuple[tuple[str, ColumnType], ...]:
        """The field of `_memory` for the further values, or an empty tuple if there are none (V2)."""
        number = ((LOG_NUMBER, ColumnType(Kind.LONG)),) if self.log else ()
        parts = (*number, *((f"s{place}", type_) for place, type_ in enumerate(self.types, 1)))
        return ((SEQUENCE, ColumnType(Kind.STRUCT, parts=parts)),) if parts else ()

    def as_property(self) -> str:
        """The expressions and their types, as JSON for the table's property."""
        types = ["TIMESTAMP", *(type_.stored_name for type_ in self.types)]
        pairs = zip(self.expressions, types, strict=True)
        return json.dumps(
            [{"expression": expression, "type": type_} for expression, type_ in pairs], ensure_ascii=False
        )


def stored_expressions(properties: Mapping[str, str]) -> tuple[str, ...] | None:
    """The expressions in a table's properties, or None if it has had no feed yet."""
    text = properties.get(ORDERED_BY)
    return None if text is None else tuple(entry["expression"] for entry in json.loads(text))


def stored_types(properties: Mapping[str, str]) -> list[ColumnType]:
    """The types of the further values in a table's properties. Empty if it has had no feed yet."""
    return [ColumnType.parse(entry["type"]) for entry in json.loads(properties.get(ORDERED_BY, "[]"))[1:]]


def agree_expressions(properties: Mapping[str, str], request: ApplyRequest) -> tuple[str, ...]:
    """The table's expressions, or else the requested ones. Raises Refused if they differ."""
    stored = stored_expressions(properties)
    requested = None if request.sequence_by is None else tuple(map(str, request.sequence_by))
    if stored is None and requested is None:
        raise bad_option(
            "The order of the changes is unknown.",
            "Name the columns that order them with `sequence_by=`, the time of the change first.",
        )
    if stored is not None and requested is not None and len(stored) == len(requested):
        pairs = zip(stored, requested, strict=True)
        stored = tuple(new if only_adds_side(old, new) else old for old, new in pairs)
    if stored is not None and requested is not None and requested != stored:
        raise Refused(
            "settings-changed",
            f"The changes of this table are ordered by {', '.join(stored)}, "
            f"but {', '.join(requested)} is given.",
            "Nothing was written; omit `sequence_by=`, because the table keeps it, or use another table.",
        )
    return stored or requested or ()


def refuse_other_types(properties: Mapping[str, str], ordering: Ordering) -> None:
    """Raise Refused if the types of further values, and thus the order, differ from those in the table."""
    if ORDERED_BY not in properties:
        return
    for name, old, new in zip(
        ordering.expressions[1:], stored_types(properties), ordering.types, strict=True
    ):
        if old != new:
            raise Refused(
                "type-changed",
                f"{name} orders changes as {old} in the table, but has type {new} in this delivery.",
                "Nothing was written; cast it to the table's type at the source.",
                [name],
            )


def ordered_type(expression: str, type_: ColumnType) -> ColumnType:
    """The type of further values. Raises UsageError for nested types, which have no order."""
    if not type_.flat:
        raise UsageError(
            "bad-option", f"{expression} is nested, so it has no order.", "Use its parts in `sequence_by=`."
        )
    return type_


def ordering_of(expressions: Sequence[str], types: Sequence[ColumnType], *, log: bool = False) -> Ordering:
    """The order by these expressions. `types` has the types of the further expressions."""
    return Ordering(
        tuple(expressions),
        tuple(ordered_type(*pair) for pair in zip(expressions[1:], types, strict=True)),
        log,
    )
