"""Conversion of change feeds of backstory, Delta and Spark (`CHANGES`) to events (native.md, V65)."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backstory.errors import Refused, UsageError
from backstory.formats.envelopes.debezium import CHANGE
from backstory.formats.envelopes.events import (
    DELETE,
    FEED,
    INSTANT,
    UPSERT,
    LogSource,
    Unwrapped,
    whole_columns,
)
from backstory.formats.envelopes.messages import REMEDY
from backstory.formats.produced import excerpt, malformed_row
from backstory.formats.rows import type_of_arrow
from backstory.formats.values.cells import UnreadableCell, first_failing
from backstory.formats.values.exactly import in_utc
from backstory.formats.values.texts import TextForms, parser
from backstory.model.change import CHANGE_COLUMNS, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, ChangeType
from backstory.model.table import nested_key_error

_NEW_ROWS: Final = pa.array([ChangeType.INSERT, ChangeType.AFTER], pa.string())


def unwrap_changes(rows: pa.Table, key: Sequence[str]) -> Unwrapped:
    """The events of a feed with `_change_type`, `_commit_version` and `_commit_timestamp`.

    A row that a commit inserts or updates is an upsert. A removed row is the before image of the new row with
    the same key in the same commit. If the commit has no such row, the record is deleted. An update that
    changes the key therefore deletes the record with the old key. `places` are the numbers of the rows that
    are events. An event's time is the commit's time, and its sequence is the commit's version.

    Raises Refused for another `_change_type` (`malformed-row`), and for an unreadable time or version
    (`unreadable-value`). Raises UsageError (`missing-column`) if the feed lacks one of these columns or a key
    column.
    """
    _refuse_columns(rows, key)
    columns = whole_columns(rows, FEED)
    types = _change_types(columns[CHANGE_TYPE])
    instants = _instants(columns[COMMIT_TIMESTAMP])
    versions = _read(columns[COMMIT_VERSION], pa.field(COMMIT_VERSION, pa.int64()))
    is_new = pc.is_in(types, _NEW_ROWS).to_numpy(zero_copy_only=False)
    groups = _groups([columns[column] for column in key] + [versions, instants])
    before = _rows_before(groups, is_new)
    is_delete = ~is_new & ~np.isin(groups, groups[is_new])
    places = np.flatnonzero(is_new | is_delete)
    taken = pa.array(places)
    upserts = pa.array(is_new[places])
    records = pa.table({column: part for column, part in columns.items() if column not in CHANGE_COLUMNS})
    # A deleted row is its own before image.
    imaged = np.where(is_new, before, np.arange(len(is_new)))[places]
    images = pa.array(imaged, mask=imaged < 0)
    events = records.take(taken)
    bare = {
        column: part if column in key else pc.if_else(upserts, part, None)
        for column, part in zip(events.column_names, events.columns, strict=True)
    }
    has_before = images.is_valid()
    return Unwrapped(
        rows=pa.table(bare),
        kinds=pc.if_else(upserts, UPSERT, DELETE),
        instants=instants.take(taken),
        sequence=pa.table({COMMIT_VERSION: versions.take(taken), CHANGE: pa.repeat(True, len(places))}),
        source=LogSource(frozenset({"changes"})),
        unmodified=pa.table({}),
        before=records.take(images) if has_before.true_count else None,
        has_before=has_before,
        places=taken,
    )


def _refuse_columns(rows: pa.Table, key: Sequence[str]) -> None:
    if lacking := [column for column in (*CHANGE_COLUMNS, *key) if column not in rows.column_names]:
        raise UsageError(
            "missing-column",
            f"The feed of changes has no column {lacking[0]}.",
            f"Its columns are {', '.join(rows.column_names)}.",
            lacking,
        )
    if nested := [column for column in key if pa.types.is_nested(rows[column].type)]:
        raise nested_key_error(nested)


def _change_types(types: pa.Array) -> pa.Array:
    known = [change.value for change in ChangeType]
    texts = types.cast(pa.string())
    strange = pc.invert(pc.is_in(texts, pa.array(known)))
    if strange.true_count:
        row = pc.index(strange, True).as_py()
        why = f"`{CHANGE_TYPE}` is `{excerpt(texts[row])}`, which is not one of {', '.join(known)}"
        raise malformed_row(FEED, f"row {row + 1}", why, REMEDY)
    return texts


def _instants(times: pa.Array) -> pa.Array:
    """The times of commits in UTC, from timestamps or ISO 8601 strings."""
    if pa.types.is_null(times.type):
        return times.cast(INSTANT)
    if pa.types.is_timestamp(times.type) and times.type.tz is not None:
        return pc.floor_temporal(in_utc(times), unit="microsecond").cast(INSTANT)
    if not pa.types.is_string(times.type):
        code = "naive-time" if pa.types.is_timestamp(times.type) else "no-instant"
        raise UsageError(
            code,
            f"{FEED}: column {COMMIT_TIMESTAMP} has type {type_of_arrow(times.type)}, which is not a time "
            "with a zone.",
            "Order events with `sequence_by=[\"to_utc_timestamp(_commit_timestamp, 'Europe/Paris')\"]`.",
            [COMMIT_TIMESTAMP],
        )
    return _read(times, pa.field(COMMIT_TIMESTAMP, INSTANT))


def _read(cells: pa.Array, field: pa.Field) -> pa.Array:
    """The cells, cast or parsed as values of the field."""
    is_text = pa.types.is_string(cells.type)
    convert = parser(field, TextForms()) if is_text else lambda part: part.cast(field.type)
    try:
        return convert(cells)
    except UnreadableCell as cell:
        row = cell.row
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row = first_failing(cells, convert)
    raise Refused("unreadable-value", f"{FEED}, row {row + 1}: `{field.name}` cannot be read.", REMEDY)


def _groups(columns: Sequence[pa.Array]) -> np.ndarray:
    """A group number for each row. Rows that are equal in all columns have the same number."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = column.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return numbers


def _rows_before(groups: np.ndarray, is_new: np.ndarray) -> np.ndarray:
    """For each row, the only removed row of its group, or -1 if the group does not have exactly one."""
    removed = np.flatnonzero(~is_new)
    count = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
    np.add.at(count, groups[removed], 1)
    first = np.full(len(count), -1)
    first[groups[removed]] = removed
    return np.where(count[groups] == 1, first[groups], -1) if len(groups) else groups
