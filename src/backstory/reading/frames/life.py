"""The statements of one record, with the commit that made each."""

from collections.abc import Sequence
from datetime import datetime

from backstory.model.instant import parse_instant
from backstory.model.table import TableName
from backstory.reading.frames.knowledge import require_knowledge, source_at
from backstory.reading.frames.records import of_record
from backstory.reading.frames.statements import statements
from backstory.reading.frames.versions import RECORDING, versions
from backstory.reading.keys import shown_key_of
from backstory.reading.selection import Selection
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.spark.versions import arrow_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.store import Store, existing
from backstory.stores.metadata.described import Described
from backstory.stores.metadata.in_session import InSession
from backstory.stores.metadata.values import rows_of


def life(
    store: Store,
    table: TableName,
    key: object,
    axis: Axis = "valid",
    known_at: datetime | None = None,
    columns: Sequence[str] = (),
) -> Timeline:
    """One record's life: what is told of it now, was at `known_at`, or, on `axis` both, ever was.

    With `columns` only these are told, beside the key. Raises UsageError for what is no key of the table and
    for a table that keeps no history, and what reading at a known time raises.
    """
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout in RECORDING:
        if known_at is not None:
            require_knowledge(stored, known_at)
        told = statements(store, table, key)
    else:
        rows = versions(store, table, known_at)
        shape = source_at(store, stored, known_at)[1]
        told = of_record(rows, shape, key)
    wanted = shown_key_of(shape, key)
    names = Selection(columns=columns).chosen(table, list(wanted), told.columns)
    with translate_faults(table):
        found = rows_of(arrow_of(told.select(*map(column, names))))
    commits = commits_of(InSession(store).describe(table))
    return timeline_of(table, wanted, found, commits, axis, known_at)


def commits_of(found: Described | None) -> dict[datetime, int]:
    """The commits of a table that are kept, by the recorded time that each tells."""
    named = None if found is None else RECORDING.get(found.shape.layout)
    if named is None or found is None:
        return {}
    told = ((commit.properties.get(named), commit.id) for commit in found.commits)
    return {parse_instant(time): snapshot for time, snapshot in told if time}
