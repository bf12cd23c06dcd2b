"""Events from the messages of a change feed, in the same form for every envelope."""

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

# The name of a feed in messages.
FEED: Final = "The feed"
UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"
INSTANT: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class LogSource:
    """The connectors, servers and tables that messages name (V136, V137).

    One log has at most one of each; reads of a snapshot may lack the server.
    """

    connectors: frozenset[str] = frozenset()
    servers: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()

    def join(self, other: "LogSource") -> "LogSource":
        """The common origin of two parts of one delivery."""
        return LogSource(
            self.connectors | other.connectors, self.servers | other.servers, self.tables | other.tables
        )


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Events as parallel tables and arrays. Row i of each belongs to event i.

    Attributes:
        rows: the record's columns, with the values of an upsert or the key of a delete. Other columns
            are NULL.
        kinds: `upsert`, `delete` or `truncate`.
        instants: the times of the events in UTC; NULL if the envelope has no time.
        sequence: the positions of the events in their log, as sort columns. Numbers and booleans sort by
            value, texts by code point. The last column is true for changes and false for reads. A read
            without a position is NULL in all columns. The table has no columns if the envelope has no order.
        unmodified: for each column of `rows` that some event leaves unchanged, whether each event does (V50).
        before: the values before the events, in columns of `rows`; or None if no event has such values.
        has_before: whether each event has a row in `before`; all other rows of `before` are NULL.
        places: the input row of each event, counted from 0.
        unordered: the connector whose log positions are unknown, so that the caller must pass `sequence_by`;
            otherwise empty.
        source: the origin of the log.
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
