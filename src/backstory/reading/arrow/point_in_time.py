"""What is true of a small table, now or at an instant."""

from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from backstory.model.layout import DELETED, Layout
from backstory.reading.arrow.known import KnownTable, known
from backstory.reading.arrow.versions import versions
from backstory.reading.frames.versions import HISTORIES
from backstory.stores.iceberg.literals import micros_of
from backstory.stores.metadata.hidden import Unreadable
from backstory.stores.metadata.rows import Files


def current(files: Files, known_at: datetime | None = None) -> pa.Table:
    """The rows that are true now, as `current` of frames has them; Unreadable for what Spark alone reads."""
    found = known(files, known_at)
    if found.shape.layout not in HISTORIES:
        return live(found)
    held = versions(found)
    return held.chosen([each for each in held.found if each.end is None])


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
        rows = rows.filter(pc.invert(pc.fill_null(rows[DELETED], False)))
    return rows.select([each.name for each in users]).rename_columns(names)


def as_of(files: Files, time: datetime, known_at: datetime | None = None) -> pa.Table:
    """The rows that were true at an instant, as `as_of` of frames has them."""
    held = versions(known(files, known_at))
    instant = micros_of(time)
    return held.chosen([each for each in held.found if each.holds(instant)])
