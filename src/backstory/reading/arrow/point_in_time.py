"""What is true of a table, now or at an instant, from files."""

from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import DELETED, VALID_TO, Layout
from backstory.model.schema import Shape
from backstory.reading.arrow.first_rows import first_rows
from backstory.reading.arrow.knowledge import KnownTable, table_at
from backstory.reading.arrow.narrowing import true_at
from backstory.reading.arrow.records import is_record
from backstory.reading.arrow.versions import VersionRows, versions
from backstory.reading.frames.versions import HISTORIES, shown_key
from backstory.reading.selection import EVERYTHING, Selection
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import without_nulls


def current(
    files: Files,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
    limit: int | None = None,
) -> pa.Table:
    """The rows that are true now, as `current` of frames has them; Unreadable for what Spark alone reads.

    With `limit` the first ones in the order of their key are among the rows, and not all others.
    """
    found = table_at(files, known_at)
    selection.require(found.shape)
    return first_rows(found.of_record(selection.key), limit, partial(current_rows, selection))


def current_rows(selection: Selection, found: KnownTable) -> pa.Table:
    """The rows that are true now, of the record and with the columns that were chosen."""
    if found.shape.layout in HISTORIES:
        held = versions(found)
        return select_versions(held.where(pc.is_null(held.spans[VALID_TO])), found.shape, selection)
    rows = live(found)
    if selection.key is not None:
        rows = rows.filter(is_record(rows, found.shape, selection.key))
    return rows.select(selection.chosen(found.shape.table, shown_key(found.shape), rows.column_names))


def select_versions(held: VersionRows, shape: Shape, selection: Selection = EVERYTHING) -> pa.Table:
    """The versions, of the record and with the columns that were chosen."""
    if selection.key is not None:
        held = held.of_places(is_record(held.users, shape, selection.key))
    rows = held.rows
    return rows.select(selection.chosen(shape.table, shown_key(shape), rows.column_names))


def live(found: KnownTable) -> pa.Table:
    """The rows of a table without a history; of one that Fivetran marks those that are not deleted."""
    shape = found.shape
    users = shape.user_columns
    names = [each.source for each in users]
    if not names or len(set(names)) < len(names):
        raise Unreadable("columns that share a name")
    marked = shape.layout is Layout.FIVETRAN_LIVE and shape.column(DELETED) is not None
    rows = found.rows([*(each.name for each in users), *([DELETED] if marked else [])])
    if marked:
        rows = rows.filter(pc.invert(without_nulls(rows[DELETED])))
    return rows.select([each.name for each in users]).rename_columns(names)


def as_of(
    files: Files,
    time: datetime,
    known_at: datetime | None = None,
    selection: Selection = EVERYTHING,
    limit: int | None = None,
) -> pa.Table:
    """The rows that were true at an instant, as `as_of` of frames has them; `limit` as `current` has it."""
    found = table_at(files, known_at)
    selection.require(found.shape)
    instant = micros_of(time)

    def versions_of(part: KnownTable) -> pa.Table:
        held = versions(part)
        return select_versions(held.where(held.hold(instant)), part.shape, selection)

    return first_rows(found.of_record(selection.key), limit, versions_of, true_at(found, instant))
