"""The events that the messages of an envelope are."""

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from backstory.formats.envelopes.log_source import LogSource

UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"
INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Events: row i of every table and array is one.

    Attributes:
        rows: the record's columns: the values of an upsert, the key of a delete; all else is NULL.
        kinds: `upsert`, `delete` or `truncate`.
        instants: when it was so, in UTC; NULL where the envelope does not say it.
        sequence: the places of the events in their log, the first column first: numbers and booleans by
            value, texts by code point; the last one says which are changes, and no reads. A read without a
            place has NULL in all. Without columns where the envelope has no such order.
        unmodified: for those columns of `rows` that some event leaves as they were, which do (V50).
        before: the values before the event, in columns of `rows`; None if no event has any.
        has_before: which events have them; the rows of `before` of all others are NULL.
        places: the row of the input that each event comes from, counted from 0.
        unordered: the connector whose log positions are not known, so that the caller must give
            `sequence_by`; empty otherwise.
        source: whose log it is.
    """

    rows: pa.Table
    kinds: pa.Array
    instants: pa.Array
    sequence: pa.Table
    unmodified: pa.Table
    before: pa.Table | None
    has_before: pa.Array
    places: pa.Array
    unordered: str = ""
    source: LogSource = field(default_factory=LogSource)
