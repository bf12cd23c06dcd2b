"""The order of a log decides, and not the clock: instants of facts as arrays (native.md V130 to V135)."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.strategies.copies.rows import OPEN, instants
from backstory.strategies.feeds.gathering import Facts
from backstory.strategies.feeds.terms import FIRST, FURTHER, FeedTerms

Interval = tuple[int | None, int] | tuple[()]


def times_to_store(own: np.ndarray) -> pa.Array:
    """Own times as they are stored: NULL for what has no place in a log."""
    return instants(np.where(own == FIRST, OPEN, own))


def has_position(terms: FeedTerms, delivered: pa.Table) -> np.ndarray:
    """Whether delivered events have a place in a log."""
    if not terms.log:
        return np.zeros(len(delivered), bool)
    position = delivered[FURTHER].combine_chunks()
    parts = [np.asarray(pc.struct_field(position, name).is_valid()) for name in terms.sequence]
    return np.logical_or.reduce(parts)


def are_reads(terms: FeedTerms, positions: pa.Array | None, count: int) -> np.ndarray:
    """Whether positions are those of reads, which show what was before any later change."""
    if not terms.log or positions is None:
        return np.zeros(count, bool)
    change = pc.struct_field(positions, positions.type.get_field_index(terms.sequence[-1]))
    return np.asarray(pc.fill_null(pc.invert(change), False))


def place_in_order(at: np.ndarray, own: np.ndarray) -> np.ndarray:
    """What tells facts of one sequence apart: their instants, but of a log nothing more (V133)."""
    return np.where(own == FIRST, at, FIRST)


def in_interval(at: np.ndarray, interval: Interval) -> np.ndarray:
    """Whether instants lie in an interval, bounds included; its first may be None, which is always."""
    if not interval:
        return np.zeros(len(at), bool)
    first, last = interval
    return (at <= last) & (True if first is None else at >= first)


def unsettled(at: np.ndarray, interval: Interval) -> np.ndarray:
    """Instants, those that are settled as the first one after what is."""
    return np.where(in_interval(at, interval), interval[1] + 1, at) if interval else at


def placed(facts: Facts, interval: Interval) -> tuple[Facts, np.ndarray]:
    """The facts at their instants, and which of them come to be settled there (V131).

    What has no place in a log neither raises nor is raised. A read never raises a change: its time is that of
    the change at the latest. What is settled raises nothing.
    """
    settled = np.zeros(len(facts), bool)
    log = np.flatnonzero(facts.own != FIRST)
    if not len(log):
        return facts, settled
    log = log[np.lexsort((facts.order[log], facts.record[log]))]
    record, own, read = facts.record[log], facts.own[log], facts.read[log]
    inside = in_interval(own, interval)
    last = interval[1] if interval else FIRST
    late = ~read & inside & (_greatest(record, own, ~read & ~inside) <= last)
    time = np.minimum(own, np.where(read, _next_change(record, own, ~read & ~late), OPEN))
    inside = in_interval(time, interval)
    greatest = _greatest(record, time, ~late & ~inside)
    late |= inside & (greatest <= last)
    settled[log] = late
    at = facts.at.copy()
    at[log] = np.where(inside & (greatest > last), greatest, np.maximum(time, greatest))
    return replace(facts, at=at), settled


def _greatest(record: np.ndarray, times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each the greatest time up to it of its record, of those that count; `FIRST` for none."""
    values, ranks = np.unique(times, return_inverse=True)
    width = len(values) + 1
    reached = np.maximum.accumulate(record * width + np.where(counts, ranks + 1, 0)) - record * width
    return np.where(reached > 0, values[reached - 1], FIRST)


def _next_change(record: np.ndarray, times: np.ndarray, change: np.ndarray) -> np.ndarray:
    """For each the time of the next change of its record; `OPEN` for none."""
    count = len(record)
    place = np.minimum.accumulate(np.where(change, np.arange(count), count)[::-1])[::-1]
    there = np.minimum(place, count - 1)
    return np.where((place < count) & (record[there] == record), times[there], OPEN)
