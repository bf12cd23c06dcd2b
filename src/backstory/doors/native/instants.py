"""Where a copy stands among what is known: its instant, what is settled, which copies are remembered."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from backstory.doors.native.request import SnapshotRequest
from backstory.errors import Refused, UsageError
from backstory.model.change import DOOR
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.remembered import (
    COLUMNS,
    COPIED_AT,
    ENDED_AT,
    KIND,
    ORDERED_BY,
    RECORDED,
    ROLE,
    SCOPE,
    SETTLED,
    Role,
    Told,
)
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.snapshots import all_snapshots, ancestry
from backstory.stores.iceberg.store import StoredTable
from backstory.strategies.copies.frames import marked, version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = Callable[[], "DataFrame"]
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """A remembered copy or truncate: its instant, the ids of a copy's columns, None for all, its scope."""

    at: datetime
    columns: tuple[int, ...] | None
    scope: str | None = None
    truncate: bool = False


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
    table: StoredTable | None, rows: Rows, asked: SnapshotRequest, scope: str | None = None
) -> Placing:
    """The copy's place; `rows` makes a frame of the table's, of which a few are read where no commit tells.

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
    recorded = max(now, newest_recorded(table, rows) + MICROSECOND)
    if told is None and not asked.backfill:
        newest = newest_instant(table, rows)
        _refuse_backwards(newest, asked)
        if not asked.begins_memory:
            stored = at == newest
            return Placing(at, recorded, stored=stored, in_order=not (stored and asked.restate))
    settled = interval_of(told) if told is not None else all_instants(rows)
    _refuse_settled(at, settled)
    marks = [] if told is None else marks_since(rows, at)
    mine = next((mark for mark in marks if (mark.at, mark.scope, mark.truncate) == (at, scope, False)), None)
    beside = tuple(mark.scope for mark in marks if mark.at == at and mark is not mine and not mark.truncate)
    _refuse_meeting(at, scope, beside)
    scoped = scope is not None or any(mark.truncate or mark.scope is not None for mark in marks)
    if scoped or (ORDERED_BY in table.properties and _has_facts_since(rows, at)):
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


def _has_facts_since(rows: Rows, at: datetime) -> bool:
    """Whether a live row, version or fact, begins at or after an instant."""
    memory = column(MEMORY)
    fact = (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()
    live = rows().where(memory.getField(ROLE).isNull() | fact)
    return bool(live.where(column(VALID_FROM) >= instant(micros_of(at))).take(1))


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


def newest_instant(table: StoredTable, rows: Rows) -> datetime | None:
    """The instant of the newest copy: told by its commit, else the last start or end of a version."""
    for snapshot in ancestry(table):
        told = snapshot.get_property(COPIED_AT)
        if told:
            return parse_instant(told)
        if snapshot.operation != "replace":  # what compacts moves no instant; whatever else did may have
            break
    ends = _ends(rows)
    return ends[1] if ends else None


def marks_since(rows: Rows, at: datetime) -> list[Mark]:
    """The remembered copies at or after an instant, oldest first."""
    from pyspark.sql.functions import unix_micros

    remembered = rows().where(marked() & (column(VALID_FROM) >= instant(micros_of(at))))
    memory = column(MEMORY)
    fields = (memory.getField(name) for name in (COLUMNS, SCOPE, KIND))
    found = remembered.select(unix_micros(column(VALID_FROM)), *fields).collect()
    marks = (
        Mark(_instant(micros), None if ids is None else tuple(ids), scope, kind == Told.TRUNCATE.value)
        for micros, ids, scope, kind in found
    )
    return sorted(marks, key=lambda mark: mark.at)


def newest_recorded(table: StoredTable, rows: Rows) -> datetime:
    """The newest recorded time of the table: by its commits, else by its rows (V10)."""
    from pyspark.sql.functions import greatest, unix_micros
    from pyspark.sql.functions import max as newest

    current = next(ancestry(table), None)
    if current is None:
        return EPOCH
    if recorded := current.get_property(RECORDED):
        return parse_instant(recorded)
    recorded_times = [
        parse_instant(each) for snapshot in all_snapshots(table) if (each := snapshot.get_property(RECORDED))
    ]
    if recorded_times and current.get_property(DOOR) is None:
        return max(recorded_times)
    times = newest(greatest(unix_micros(RECORDED_AT), unix_micros(column(MEMORY).getField(ENDED_AT))))
    (micros,) = rows().agg(times).collect()[0]
    return max([*recorded_times, EPOCH if micros is None else _instant(micros)])


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


def all_instants(rows: Rows) -> tuple[datetime | None, datetime] | tuple[()]:
    """What is settled when the memory begins: all that copies made until then (V28)."""
    return _ends(rows) or ()


def _ends(rows: Rows) -> tuple[datetime, datetime] | None:
    """The first and the last start or end of any version; None without versions."""
    from pyspark.sql.functions import greatest, unix_micros
    from pyspark.sql.functions import max as last
    from pyspark.sql.functions import min as first

    start, end = (unix_micros(column(name)) for name in (VALID_FROM, VALID_TO))
    (found,) = rows().where(version()).agg(first(start), last(greatest(start, end))).collect()
    return None if found[0] is None else (_instant(found[0]), _instant(found[1]))


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


def _instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
