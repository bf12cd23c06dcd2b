"""The statements of one record, with the commit that made each."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from backstory.model.instant import parse_instant
from backstory.model.layout import Layout
from backstory.model.remembered import RECORDED
from backstory.model.table import TableName
from backstory.reading.frames.knowledge import require_known
from backstory.reading.frames.statements import is_record, statements
from backstory.reading.frames.versions import versions
from backstory.reading.timelines import Axis, Timeline, timeline_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import Store, existing
from backstory.stores.metadata.described import Described
from backstory.stores.metadata.in_session import InSession

# Where a commit says when it was recorded what it told.
RECORDING: Final = {Layout.VERSIONS: RECORDED, Layout.ODF: "backstory.odf.system-time"}


def life(
    store: Store,
    table: TableName,
    key: Mapping[str, object],
    axis: Axis = "valid",
    known_at: datetime | None = None,
) -> Timeline:
    """One record's life: what is told of it now, was at `known_at`, or, on `axis` both, ever was.

    The key's values may be given as text. Raises UsageError for another key and for a table that keeps no
    history, and what reading at a known time raises.
    """
    stored = existing(store, table)
    shape = stored.shape
    if shape.layout in RECORDING:
        if known_at is not None:
            require_known(stored, known_at)
        told = statements(store, table, key)
    else:
        rows = versions(store, table, known_at)
        told = rows.where(is_record(store, shape, rows, key))
    with translate_faults(table):
        found = told.toArrow().to_pylist(maps_as_pydicts="strict")
    commits = commits_of(InSession(store).describe(table))
    return timeline_of(table, key, found, commits, axis, known_at)


def commits_of(found: Described | None) -> dict[datetime, int]:
    """The commits of a table that are kept, by the recorded time that each tells."""
    named = None if found is None else RECORDING.get(found.shape.layout)
    if named is None or found is None:
        return {}
    told = ((commit.properties.get(named), commit.id) for commit in found.commits)
    return {parse_instant(time): snapshot for time, snapshot in told if time}
