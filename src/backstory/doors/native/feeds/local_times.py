"""Local times as instants: a time that clocks repeat is two of them, and one that they skip is none."""

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.options import Expression
from backstory.doors.native.request import bad_option
from backstory.errors import Refused

_WORD: Final = re.compile(r"\bto_utc_timestamp\b", re.IGNORECASE)
_LOCAL: Final = re.compile(
    r"\s*to_utc_timestamp\s*\(\s*(?P<time>.+?)\s*,\s*'(?P<zone>[^',]+)'"
    r"\s*(?:,\s*'(?P<side>earlier|later)'\s*)?\)\s*",
    re.IGNORECASE | re.DOTALL,
)
_SIDES: Final = {"earlier": "earliest", "later": "latest"}


@dataclass(frozen=True, slots=True)
class LocalTimes:
    """Times of a zone, and which of two instants a time is; without a `side` such times are refused."""

    expression: str
    time: str
    zone: str
    side: str | None

    def instants(self, times: pa.Array, *, counted: bool) -> pa.Array:
        """The instants of times, the zone of which says nothing: 02:10 is 02:10 on the zone's clocks.

        With a side a time that the zone skips is the first instant after the gap. Raises Refused for a time
        that is two instants or none, with its row where rows are `counted`.
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
            # An instant that shows another time on the zone's clocks was moved there.
            row = pc.index(unsure, True).as_py()
            skipped = pc.local_timestamp(last)[row] != local[row]
            raise self._refused(row, counted=counted, skipped=skipped)
        return first.cast(pa.timestamp("us", "UTC"))

    def _unknown_zone(self) -> Exception:
        return bad_option(f"{self.zone} is not a time zone.", "Name one such as `Europe/Paris`.")

    def _refused(self, row: int, *, counted: bool, skipped: bool) -> Refused:
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
    """What an expression of local times says; None for another expression.

    Raises UsageError where they are part of something else: Spark would guess the instant.
    """
    if not _WORD.search(str(expression)):
        return None
    text = expression if isinstance(expression, str) else ""  # a column of Spark is no text
    match = _LOCAL.fullmatch(text)
    if match is None or _WORD.search(match["time"]) or not _is_one(match["time"]):
        raise bad_option(
            f"{expression} has local times within; some times are two instants, or none.",
            "Let `to_utc_timestamp(time, 'Europe/Paris')` be the whole expression, as a text, with the name "
            "of a zone.",
        )
    return LocalTimes(text, match["time"], match["zone"], match["side"] and match["side"].lower())


def takes_side(kept: str, given: str) -> bool:
    """Whether an expression says the side of the local times that another refused, and nothing else."""
    before, now = local_times(kept), local_times(given)
    if before is None or now is None or before.side is not None:
        return False
    return (before.time, before.zone) == (now.time, now.zone)


def _is_one(text: str) -> bool:
    """Whether a text is one expression: no comma parts it, no bracket closes that did not open."""
    depth = 0
    for letter in re.sub(r"'[^']*'", "", text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0 or (letter == "," and not depth):
            return False
    return depth == 0
