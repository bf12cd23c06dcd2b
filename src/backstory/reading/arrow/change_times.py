"""When anything in a history began or ended: what a slider moves over."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.instant import EPOCH
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.narrowing import timed_span
from backstory.reading.arrow.versions import versions
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.least_values import MOST_VALUES
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import numbers


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """The instants at which versions began or ended, in microseconds since 1970, in their order.

    `begun` and `ended` say how many did at each.
    """

    instants: np.ndarray
    begun: np.ndarray
    ended: np.ndarray

    def before(self, time: datetime) -> datetime | None:
        """The last instant before a time; None if there is none."""
        place = int(np.searchsorted(self.instants, micros_of(time), side="left"))
        return self._instant(place - 1)

    def after(self, time: datetime) -> datetime | None:
        """The first instant after a time; None if there is none."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")))

    def until(self, time: datetime) -> datetime | None:
        """The last instant that is not after a time."""
        return self._instant(int(np.searchsorted(self.instants, micros_of(time), side="right")) - 1)

    def some(self, most: int) -> list[datetime]:
        """At most so many of the instants, evenly chosen, the first and the last among them."""
        count = len(self.instants)
        places = np.unique(np.linspace(0, max(count - 1, 0), min(count, most)).round().astype(np.int64))
        return [EPOCH + timedelta(microseconds=int(each)) for each in self.instants[places]]

    def _instant(self, place: int) -> datetime | None:
        if not 0 <= place < len(self.instants):
            return None
        return EPOCH + timedelta(microseconds=int(self.instants[place]))


def change_times(files: Files) -> ChangeTimes:
    """The instants of the table as it is; Unreadable for what Spark alone reads."""
    known = table_at(files, None)
    span = timed_span(known)
    if span is None:
        spans = versions(known).spans
        return _counted(*(spans[name].cast(pa.int64()) for name in (VALID_FROM, VALID_TO)))
    rows = files.rows(known.snapshot, known.fields, [span.start, span.end], MOST_VALUES)
    starts, ends = rows[span.start], rows[span.end]
    if known.shape.layout is Layout.VERSIONS:
        rows = rows.filter(_lasting(starts, ends))
        starts, ends = rows[span.start], rows[span.end]
    if span.far is not None:
        ends = ends.filter(pc.less(ends.cast(pa.int64()), span.far))
    return _counted(starts.cast(pa.int64()), ends.cast(pa.int64()), span.grain)


def _lasting(starts: pa.ChunkedArray, ends: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which rows of layout `versions` are versions: those that have length."""
    return pc.or_kleene(pc.is_null(ends), pc.greater(ends, starts))


def _counted(starts: pa.ChunkedArray, ends: pa.ChunkedArray, grain: int = 0) -> ChangeTimes:
    """How many begin and end at each instant; an end lies a grain before the successor's beginning."""
    (began, begun), (stopped, ended) = _distinct(starts), _distinct(ends)
    if grain:
        stopped = np.where(np.isin(stopped + grain, began), stopped + grain, stopped)
    instants, places = np.unique(np.concatenate([began, stopped]), return_inverse=True)
    counts = np.zeros((2, len(instants)), np.int64)
    np.add.at(counts[0], places[: len(began)], begun)
    np.add.at(counts[1], places[len(began) :], ended)
    return ChangeTimes(instants, counts[0], counts[1])


def _distinct(values: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    found = pc.value_counts(values.drop_null())
    values, counts = (numbers(pa.chunked_array([found.field(name)])) for name in ("values", "counts"))
    return values, counts
