"""What changed in a small table between two times."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.reading.arrow.differing import Differing, ListedDifferences, pair
from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.narrowing import moving_between
from backstory.reading.arrow.point_in_time import as_of, current
from backstory.reading.arrow.versions import VersionRows, remembered, versions
from backstory.reading.comparisons import ENDS, Comparison
from backstory.reading.frames.event_logs import system_columns
from backstory.reading.frames.knowledge import require_knowledge
from backstory.reading.frames.versions import HISTORIES, history_of, shown_key
from backstory.reading.lives import shown_name
from backstory.reading.rules.differences import Side, differences
from backstory.reading.rules.passages import Lived, passages
from backstory.reading.rules.versions import RememberedRow
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import integers, rows_of

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
    places: list[tuple[int, bool]] = []
    starts = {}
    for each in held.found:
        before, after = (each.holds(time) for time in instants)
        if before is not None and after is not None and before != after:
            places.append((each.place, after))
            starts[each.place] = each.start
    return _differing(files, held.users, places, starts.get, comparison)


def _through(
    files: Files, held: VersionRows, instants: tuple[int, int], comparison: Comparison
) -> list[Difference]:
    """The same, and what happened in between."""
    low, high = sorted(instants)
    touched = [
        each
        for each in held.found
        if any(border is not None and low < border <= high for border in (each.start, each.end))
        and each.start is not None
    ]
    key, users = _compared(files, held.users, comparison)
    timed = _timed(files, files.table.shape)
    rows = rows_of(users.take(integers([each.place for each in touched])))
    lived = []
    for row, each in zip(rows, touched, strict=True):
        before, after = (bool(each.holds(time)) for time in instants)
        lived.append(Lived(row, each.start, each.end, before, after, each.start if timed else None))
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
    before, after = sides
    try:
        both = pa.concat_tables(sides, promote_options="default")
    except pa.ArrowException:
        raise Unreadable("columns of other types then") from None
    spans = both[VALID_FROM].to_pylist() if VALID_FROM in both.column_names else []
    rows = both.drop_columns([name for name in (VALID_FROM, VALID_TO) if name in both.column_names])
    places = [(place, place >= before.num_rows) for place in range(before.num_rows + after.num_rows)]
    return _differing(files, rows, places, spans.__getitem__, comparison)


def _diff_native_rows(
    files: Files, first: datetime, second: datetime, instant: int, comparison: Comparison
) -> Differing:
    """How the native rows of an instant differ between two known times, read once (V6)."""
    table = table_at(files, second)
    users = history_of(table.table, table.shape).user_columns
    own = table.rows([*(each.name for each in users), VALID_FROM, VALID_TO, RECORDED_AT, MEMORY])

    def holds(row: RememberedRow, known_at: int) -> bool:
        end = row.end_at(known_at)
        return row.recorded is not None and row.recorded <= known_at and (end is None or end > instant)

    places = []
    for each in remembered(own):
        if not each.is_fact and each.start is not None and each.start <= instant:
            before, after = holds(each, micros_of(first)), holds(each, micros_of(second))
            if before != after:
                places.append((each.place, after))
    rows = own.select([each.name for each in users]).rename_columns(
        [shown_name(each.source) for each in users]
    )
    return _differing(files, rows, places, lambda _: None, comparison)


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
    places: list[tuple[int, bool]],
    start_of: Any,
    comparison: Comparison,
) -> Differing:
    """The differences of the rows at these places, each with whether its row is of the second side."""
    key, users = _compared(files, users, comparison)
    timed = _timed(files, files.table.shape)
    if not timed and set(key) <= set(users.column_names):
        of_side = np.array([after for _, after in places], bool)
        numbers = np.array([place for place, _ in places], np.int64)
        paired = pair(users, key, numbers[~of_side], numbers[of_side])
        if paired is not None:
            return paired.of_kind(comparison.change)
    rows = rows_of(users.take(integers([place for place, _ in places])))
    sides: Iterable[Side] = (
        Side(row, after, start_of(place) if timed else None)
        for row, (place, after) in zip(rows, places, strict=True)
    )
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
