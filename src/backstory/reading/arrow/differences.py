"""What changed in a small table between two times."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.reading.arrow.differing import Differing, ListedDifferences, pair
from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.narrowing import moving_between
from backstory.reading.arrow.point_in_time import as_of, current
from backstory.reading.arrow.versions import INSTANT, VersionRows, versions, versions_then
from backstory.reading.comparisons import ENDS, Comparison
from backstory.reading.frames.event_logs import system_columns
from backstory.reading.frames.knowledge import require_knowledge
from backstory.reading.frames.versions import HISTORIES, shown_key
from backstory.reading.rules.differences import Side, differences
from backstory.reading.rules.passages import Lived, passages
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import integers, rows_of, truths_of, values_of, without_nulls

Difference = dict[str, Any]


def diff(
    files: Files,
    first: datetime,
    second: datetime,
    known_at: datetime | None = None,
    comparison: Comparison = ENDS,
) -> list[Difference]:
    """How the records at one instant differ from those at another, as `diff` of frames tells it."""
    return differing(files, first, second, known_at, comparison).page()


def differing(
    files: Files,
    first: datetime,
    second: datetime,
    known_at: datetime | None = None,
    comparison: Comparison = ENDS,
) -> Differing:
    """The same, to be counted and told in pages."""
    instants = micros_of(first), micros_of(second)
    held = versions(moving_between(table_at(files, known_at), instants))
    if comparison.through:
        return ListedDifferences(_through(files, held, instants, comparison))
    moved = held.where(pc.xor(*map(held.hold, instants)))
    after = truths_of(moved.hold(instants[1]))
    return _differing(files, held.users, moved.places, after, comparison, moved.spans[VALID_FROM])


def _through(
    files: Files, held: VersionRows, instants: tuple[int, int], comparison: Comparison
) -> list[Difference]:
    """The same, and what happened in between."""
    low, high = (integers([each], INSTANT)[0] for each in sorted(instants))
    begins, ends = (
        without_nulls(pc.and_(pc.greater(border, low), pc.less_equal(border, high)))
        for border in (held.spans[VALID_FROM], held.spans[VALID_TO])
    )
    touched = held.where(pc.and_(pc.or_(begins, ends), pc.is_valid(held.spans[VALID_FROM])))
    key, users = _compared(files, held.users, comparison)
    timed = _timed(files, files.table.shape)
    spans = zip(*(values_of(touched.spans[name]) for name in (VALID_FROM, VALID_TO)), strict=True)
    sides = zip(*(truths_of(touched.hold(each)).tolist() for each in instants), strict=True)
    lived = [
        Lived(row, start, end, before, after, start if timed else None)
        for row, (start, end), (before, after) in zip(
            rows_of(users.take(touched.places)), spans, sides, strict=True
        )
    ]
    return comparison.listed(passages(lived, key))


def diff_knowledge(
    files: Files, first: datetime, second: datetime, time: datetime, comparison: Comparison = ENDS
) -> list[Difference]:
    """How the answers for one instant differ between two known times (V96)."""
    return differing_knowledge(files, first, second, time, comparison).page()


def differing_knowledge(
    files: Files, first: datetime, second: datetime, time: datetime, comparison: Comparison = ENDS
) -> Differing:
    """The same, to be counted and told in pages."""
    table = files.table
    if table.shape.layout is Layout.VERSIONS:
        for each in (first, second):
            require_knowledge(table, each)
        return _diff_native_rows(files, first, second, micros_of(time), comparison)
    sides = []
    for known_at in (first, second):
        lasting = table_at(files, known_at).shape.layout in HISTORIES
        sides.append(as_of(files, time, known_at) if lasting else current(files, known_at))
    before, _ = sides
    try:
        both = pa.concat_tables(sides, promote_options="default")
    except pa.ArrowException:
        raise Unreadable("columns of other types then") from None
    starts = both[VALID_FROM] if VALID_FROM in both.column_names else None
    rows = both.drop_columns([name for name in (VALID_FROM, VALID_TO) if name in both.column_names])
    places = np.arange(both.num_rows)
    return _differing(files, rows, places, places >= before.num_rows, comparison, starts)


def _diff_native_rows(
    files: Files, first: datetime, second: datetime, instant: int, comparison: Comparison
) -> Differing:
    """How the native rows of an instant differ between two known times, read once (V6)."""
    held = versions_then(table_at(files, second), [micros_of(first), micros_of(second)])
    before, after = (np.asarray(each.where(each.hold(instant)).places) for each in held)
    gone, come = np.setdiff1d(before, after), np.setdiff1d(after, before)
    places = np.concatenate([gone, come])
    return _differing(files, held[0].users, places, np.arange(len(places)) >= len(gone), comparison)


def _compared(files: Files, users: pa.Table, comparison: Comparison) -> tuple[list[str], pa.Table]:
    """The key, and the columns that are compared."""
    shape = files.table.shape
    key = shown_key(shape)
    if any(pa.types.is_map(each.type) for each in users.schema if not key or each.name in key):
        raise Unreadable("maps in a key")
    return key, users.select(comparison.names(shape.table, key, users.column_names))


def _differing(
    files: Files,
    users: pa.Table,
    places: np.ndarray | pa.ChunkedArray,
    after: np.ndarray,
    comparison: Comparison,
    starts: pa.ChunkedArray | None = None,
) -> Differing:
    """The differences of the rows at these places, each with whether its row is of the second side."""
    key, users = _compared(files, users, comparison)
    numbers, timed = np.asarray(places), _timed(files, files.table.shape)
    if not timed and set(key) <= set(users.column_names):
        paired = pair(users, key, numbers[~after], numbers[after])
        if paired is not None:
            return paired.of_kind(comparison.change)
    rows = rows_of(users.take(integers(numbers)))
    times = values_of(starts) if timed and starts is not None else [None] * len(rows)
    sides: Iterable[Side] = map(Side, rows, after.tolist(), times)
    return ListedDifferences(comparison.listed(differences(_whole(sides, key), key)))


def _whole(sides: Iterable[Side], key: list[str]) -> Iterator[Side]:
    """The sides; Unreadable where the rows have not all columns of the key."""
    for each in sides:
        if any(name not in each.row for name in key):
            raise Unreadable("a key of other columns then")
        yield each


def _timed(files: Files, shape: Shape) -> bool:
    """Whether the time of a record belongs to what tells it from others: in a ledger."""
    return shape.layout is Layout.ODF and bool(system_columns(files.table)["events"])
