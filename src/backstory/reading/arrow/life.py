"""One record's life, from files."""

from collections.abc import Sequence
from datetime import datetime

from backstory.reading.arrow.knowledge import table_at
from backstory.reading.arrow.records import is_record
from backstory.reading.arrow.versions import statements, versions
from backstory.reading.frames.knowledge import require_knowledge
from backstory.reading.frames.life import commits_of
from backstory.reading.frames.versions import RECORDING
from backstory.reading.keys import shown_key_of
from backstory.reading.selection import Selection
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.stores.metadata.rows import Files
from backstory.stores.metadata.values import rows_of


def life(
    files: Files,
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's life, as `life` of frames tells it; Unreadable for what Spark alone reads."""
    table = files.table.shape.table
    told = files.table.shape.layout in RECORDING
    if told and known_at is not None:
        require_knowledge(files.table, known_at)
    then = table_at(files, None if told else known_at)
    Selection(key, columns).require(then.shape)
    then = then.of_record(key)
    found = statements(then) if told else versions(then)
    wanted = shown_key_of(then.shape, key)
    rows = found.of_places(is_record(found.users, then.shape, key)).rows
    names = Selection(columns=columns).chosen(table, list(wanted), rows.column_names)
    return timeline_of(table, wanted, rows_of(rows.select(names)), commits_of(files.table), axis, known_at)
