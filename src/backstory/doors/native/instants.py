"""Where a copy stands among what is known: its instant, what is settled, which copies are remembered."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from backstory.doors.native.request import SnapshotRequest
from backstory.doors.native.stored_instants import Mark, StoredInstants
from backstory.errors import Refused, UsageError
from backstory.model.change import DOOR
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.remembered import COPIED_AT, ORDERED_BY, RECORDED, SETTLED
from backstory.stores.iceberg.snapshots import all_snapshots, ancestry
from backstory.stores.iceberg.store import Store, StoredTable

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Placing:
    """A copy's place: whether one of its instant is stored, and the next fact behind it.

    `settled` is the interval from now on, None for a table without memory; `begins` says that the memory
    begins with this copy. `among`: events or scopes are known from its instant on; `beside` are the scopes of
    other copies of it.
    """

    at: datetime
    recorded: datetime
    stored: bool = False
    following: datetime | None = None
    in_order: bool = True
    settled: tuple[datetime | None, datetime] | tuple[()] | None = None
    begins: bool = False
    mark: Mark | None = None
    scope: str | None = None
    beside: tuple[str | None, ...] = ()
    among: bool = False

    @property
    def remembers(self) -> bool:
        """Whether the table has a memory once the copy is taken (V28)."""
        return self.settled is not None

    def settled_text(self) -> str:
        """The interval as the table keeps it."""
        return interval_text(self.settled or ())


def placed(
    store: Store, table: StoredTable | None, asked: SnapshotRequest, scope: str | None = None
) -> Placing:
    """The copy's place; a few of the table's rows are read where no commit tells.

    Raises Refused for an instant that is too old or settled, and UsageError for a copy that may lack records
    on a table with memory.
    """
    now, at = datetime.now(UTC), asked.instant
    told = None if table is None else table.iceberg.properties().get(SETTLED)
    if asked.deletes == "ignore" and (told is not None or asked.begins_memory):
        raise UsageError(
            "partial-copy",
            "The table stores the time of every copy, so each copy must be complete.",
            "Omit `deletes='ignore'`, and send complete copies.",
        )
    if table is None:
        begins = asked.begins_memory
        return Placing(at, now, settled=() if begins else None, begins=begins, scope=scope)
    stored_rows = StoredInstants(store, table)
    recorded = max(now, newest_recorded(stored_rows) + MICROSECOND)
    if told is None and not asked.backfill:
        newest = newest_instant(stored_rows)
        _refuse_backwards(newest, asked)
        if not asked.begins_memory:
            stored = at == newest
            return Placing(at, recorded, stored=stored, in_order=not (stored and asked.restate))
    settled = interval_of(told) if told is not None else stored_rows.ends() or ()
    _refuse_settled(at, settled)
    marks = [] if told is None else stored_rows.marks_since(at)
    mine = next((mark for mark in marks if (mark.at, mark.scope, mark.truncate) == (at, scope, False)), None)
    beside = tuple(mark.scope for mark in marks if mark.at == at and mark is not mine and not mark.truncate)
    _refuse_meeting(at, scope, beside)
    scoped = scope is not None or any(mark.truncate or mark.scope is not None for mark in marks)
    if scoped or (ORDERED_BY in table.properties and stored_rows.has_facts_since(at)):
        return Placing(
            at,
            recorded,
            mine is not None,
            in_order=False,
            settled=settled,
            begins=told is None,
            mark=mine,
            scope=scope,
            beside=beside,
            among=True,
        )
    later = [*(mark.at for mark in marks if mark.at > at), *([settled[0]] if settled and settled[0] else [])]
    following = min((each for each in later if each is not None and each > at), default=None)
    _refuse_narrow(marks, following)
    stored = mine is not None
    return Placing(
        at, recorded, stored, following, following is None and not stored, settled, told is None, mine
    )


def _refuse_meeting(at: datetime, scope: str | None, beside: Sequence[str | None]) -> None:
    """Copies of one instant have the same scope, or scopes without a common record (V43)."""
    wanted = json.loads(scope or "{}")
    for other in beside:
        theirs = json.loads(other or "{}")
        if not any(name in wanted and wanted[name] != value for name, value in theirs.items()):
            raise Refused(
                "same-instant",
                f"A copy for {iso(at)} is stored whose scope {_scope_words(other)} has records in common "
                "with this one's.",
                "Nothing was written; give the copies different times, or scopes that differ in one column.",
            )


def _scope_words(scope: str | None) -> str:
    """A scope for people."""
    return " ".join(f"{name}={value}" for name, value in json.loads(scope or "{}").items()) or "(all records)"


def _refuse_backwards(newest: datetime | None, asked: SnapshotRequest) -> None:
    """Without a memory only the newest copy, or one that is newer, has a place (N3)."""
    if newest is None or asked.instant >= newest:
        return
    meanwhile = "Nothing was written; read the source again and send the new copy."
    on_purpose = (
        "Nothing was written; use `backfill=True` for copies older than everything stored; to replace "
        "newer ones, rewind and send them again."
    )
    raise Refused(
        "time-backwards",
        f"The copy was taken at {iso(asked.instant)}, but a newer one from {iso(newest)} is already stored.",
        on_purpose if asked.at else meanwhile,
    )


def newest_instant(stored: StoredInstants) -> datetime | None:
    """The instant of the newest copy: told by its commit, else the last start or end of a version."""
    for snapshot in ancestry(stored.table):
        told = snapshot.get_property(COPIED_AT)
        if told:
            return parse_instant(told)
        if snapshot.operation != "replace":  # what compacts moves no instant; whatever else did may have
            break
    ends = stored.ends()
    return ends[1] if ends else None


def newest_recorded(stored: StoredInstants) -> datetime:
    """The newest recorded time of the table: by its commits, else by its rows (V10)."""
    current = next(ancestry(stored.table), None)
    if current is None:
        return EPOCH
    if recorded := current.get_property(RECORDED):
        return parse_instant(recorded)
    recorded_times = [
        parse_instant(each)
        for snapshot in all_snapshots(stored.table)
        if (each := snapshot.get_property(RECORDED))
    ]
    if recorded_times and current.get_property(DOOR) is None:
        return max(recorded_times)
    return max([*recorded_times, stored.newest_recorded() or EPOCH])


def interval_of(told: str) -> tuple[datetime | None, datetime] | tuple[()]:
    """The settled interval that a table keeps."""
    found = json.loads(told)
    if not found:
        return ()
    first, last = found
    return (None if first is None else parse_instant(first), parse_instant(last))


def interval_text(settled: Sequence[datetime | None]) -> str:
    """A settled interval as a table keeps it."""
    return json.dumps([each and iso(each) for each in settled])


def _refuse_settled(at: datetime, settled: Sequence[datetime | None]) -> None:
    if not settled:
        return
    first, last = settled
    assert last is not None
    if (first is None or first <= at) and at <= last:
        since = "the beginning" if first is None else iso(first)
        raise Refused(
            "settled",
            f"The copy was taken at {iso(at)}, but no copy between {since} and {iso(last)} is "
            "accepted any more.",
            "Nothing was written; only copies of earlier or later times are accepted.",
        )


def _refuse_narrow(marks: Sequence[Mark], following: datetime | None) -> None:
    """What a copy that lacked columns says of them comes down from what was before it."""
    if narrow := [mark for mark in marks if mark.at == following and mark.columns is not None]:
        raise Refused(
            "settled",
            f"The next copy, of {iso(narrow[0].at)}, lacked columns of the table; this copy would change "
            "their values at that time.",
            "Nothing was written; first send that copy again with all columns and `restate=True`.",
        )
