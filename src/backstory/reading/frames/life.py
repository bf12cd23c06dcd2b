"""The statements of one record, with the commit that made each."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from backstory.model.instant import parse_instant
from backstory.model.layout import VALID_FROM, VALID_TO, Layout
from backstory.model.remembered import RECORDED
from backstory.model.table import TableName
from backstory.reading.frames.knowledge import require_known
from backstory.reading.frames.statements import TOLD_FROM, TOLD_TO, is_record, statements
from backstory.reading.frames.versions import versions
from backstory.reading.lives import AXES, KNOWN_FROM, KNOWN_TO, SNAPSHOT, Told, held
from backstory.reading.timelines import Axis, Timeline
from backstory.stores.iceberg.store import Store, StoredTable, existing
from backstory.stores.metadata.in_session import InSession

# Where a commit says when it was recorded what it told.
_RECORDED: Final = {Layout.VERSIONS: RECORDED, Layout.ODF: "backstory.odf.system-time"}


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
    if shape.layout in _RECORDED:
        if known_at is not None:
            require_known(stored, known_at)
        found = statements(store, table, key).toArrow().to_pylist(maps_as_pydicts="strict")
    else:
        rows = versions(store, table, known_at)
        found = rows.where(is_record(store, shape, rows, key)).toArrow().to_pylist(maps_as_pydicts="strict")
    commits = _commits(store, stored)
    stated: Sequence[Told] = [_stated(each, commits) for each in found]
    if shape.layout in _RECORDED and axis != "both":
        stated = held(stated, known_at)
    told = sorted(stated, key=_in_order)
    columns = [name for name in (told[0] if told else ()) if name not in {*shape.source_key, *AXES}]
    title = " ".join([str(table), *(f"{name}={value}" for name, value in key.items())])
    return Timeline(told, columns, axis, title)


def _stated(statement: Mapping[str, Any], commits: Mapping[datetime, int]) -> dict[str, Any]:
    """The values, then the axes; a user's own `known_from` is read as `known_from_src`."""
    found = dict(statement)
    valid = {name: found.pop(name) for name in (VALID_FROM, VALID_TO)}
    known = {KNOWN_FROM: found.pop(TOLD_FROM, None), KNOWN_TO: found.pop(TOLD_TO, None)}
    values = {f"{name}_src" if name in AXES else name: value for name, value in found.items()}
    told = known[KNOWN_FROM]
    return values | valid | known | {SNAPSHOT: commits.get(told) if told else None}


def _commits(store: Store, table: StoredTable) -> dict[datetime, int]:
    """The commits that are kept, by the recorded time that each tells."""
    named, found = _RECORDED.get(table.shape.layout), InSession(store).describe(table.shape.table)
    if named is None or found is None:
        return {}
    told = ((commit.properties.get(named), commit.id) for commit in found.commits)
    return {parse_instant(time): snapshot for time, snapshot in told if time}


def _in_order(statement: Mapping[str, Any]) -> tuple[Any, ...]:
    return statement[VALID_FROM], (statement.get(KNOWN_FROM) is not None, statement.get(KNOWN_FROM))
