"""The instants at which versions of a table began or ended, for the explorer's slider."""

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from backstory.model.instant import EPOCH
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.reading.arrow_rows import query_rows
from backstory.reading.files import table_in_files
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.table_rows import MOST_VALUES, TableReader
from backstory.stores.metadata.values import whole_numbers


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """The instants at which versions began or ended, sorted, in microseconds since 1970.

    `starts` and `ends` count the versions that began and ended at each.
    """

    instants: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def before(self, time: datetime) -> datetime | None:
        """The last instant before a time, or None."""
        place = int(np.searchsorted(self.instants, micros_of(time), side="left"))
        return self._instant(place - 1)

    def after(self, time: datetime) -> datetime | None:
        """The first instant after a time, or None."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")))

    def until(self, time: datetime) -> datetime | None:
        """The last instant at or before a time, or None."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")) - 1)

    def some(self, most: int) -> list[datetime]:
        """At most `most` of the instants, evenly spaced by number, including the first and the last."""
        count = len(self.instants)
        places = np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))
        return [EPOCH + timedelta(microseconds=int(each)) for each in self.instants[places]]

    def _instant(self, place: int) -> datetime | None:
        if not 0 <= place < len(self.instants):
            return None
        return EPOCH + timedelta(microseconds=int(self.instants[place]))


# When versions began or ended, from their starts and ends in microseconds. An end a grain before a start
# counts at that start.
_CHANGES: Final = """
WITH lives AS (SELECT started, CASE WHEN ended < {far} THEN ended END AS ended FROM recorded WHERE {lasting})
SELECT instant, CAST(SUM(starts) AS BIGINT) AS starts, CAST(SUM(1 - starts) AS BIGINT) AS ends FROM (
  SELECT started AS instant, 1 AS starts FROM lives UNION ALL
  SELECT CASE WHEN ended + {grain} IN (SELECT started FROM lives) THEN ended + {grain} ELSE ended END, 0
  FROM lives
) AS changes WHERE instant IS NOT NULL GROUP BY instant ORDER BY instant
"""


def change_times(files: TableReader) -> ChangeTimes:
    """The instants at which versions of a table begin or end; Unreadable if only Spark can read it."""
    known, lasting = table_in_files(files), "TRUE"
    span = known.utc_span
    if span is None:
        versions = known.versions()
        starts, ends, far, grain = versions[VALID_FROM], versions[VALID_TO], None, 0
    else:
        rows = files.rows(known.snapshot, known.fields, [span.start, span.end], MOST_VALUES)
        starts, ends, far, grain = rows[span.start], rows[span.end], span.far, span.grain
        if known.shape.layout is Layout.VERSIONS:  # a row without a length is no version
            lasting = "ended IS NULL OR ended > started"
    relation = pa.table({"started": starts.cast(pa.int64()), "ended": ends.cast(pa.int64())})
    query = _CHANGES.format(far=sys.maxsize if far is None else far, grain=grain, lasting=lasting)
    return ChangeTimes(*map(whole_numbers, query_rows(relation, query).columns))
