"""The instants of deliveries and tables: recorded times, the settled interval, and remembered copies.

The instants are read from commits, or else from rows. The driver reads rows from files that it can open.
Otherwise Spark reads them (V10, V28).
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from backstory.doors.native.evolution import EvolvedShape
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.stored_rows import fact_condition, stored_marks, version_condition
from backstory.errors import Refused, UsageError
from backstory.formats.memory import TooLarge
from backstory.model.change import DOOR
from backstory.model.instant import EPOCH, iso, parse_instant
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.types import widens
from backstory.model.versions_layout import (
    COLUMNS,
    COPIED_AT,
    ENDED_AT,
    KIND,
    MEMORY_SINCE,
    ORDERED_BY,
    RECORDED,
    ROLE,
    SCOPE,
    SETTLED,
    FactKind,
)
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.slice import LocalRows
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.metadata.searches import Between, Searches
from backstory.stores.metadata.table_metadata import Unreadable
from backstory.strategies.copies.version_rows import are_live, are_versions

MICROSECOND = timedelta(microseconds=1)
# A settled interval: empty, or its first and last instant. The first may be None.
Interval = tuple[datetime | None, datetime] | tuple[()]
Micros = tuple[int | None, int] | tuple[()]


@dataclass(frozen=True, slots=True)
class Mark:
    """A remembered copy or truncate: its instant, its scope, and a copy's field ids (None for all)."""

    at: datetime
    columns: tuple[int, ...] | None
    scope: str | None = None
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class StoredInstants:
    """The instants and marks in a table's rows."""

    store: IcebergStore
    table: IcebergTable

    def ends(self) -> tuple[datetime, datetime] | None:
        """The earliest start and the latest start or end of all versions, or None without versions."""
        try:
            parts = [
                (pc.min(rows[VALID_FROM]), pc.max(rows[VALID_FROM]), pc.max(rows[VALID_TO]))
                for rows in self._read([VALID_FROM, VALID_TO], [(MEMORY, ROLE)], are_versions)
            ]
        except Unreadable:
            start, end = (sf.unix_micros(column(name)) for name in (VALID_FROM, VALID_TO))
            versions = self._frame().where(version_condition())
            first, last = versions.agg(sf.min(start), sf.max(sf.greatest(start, end))).collect()[0]
            return None if first is None else (_instant(first), _instant(last))
        starts = [first.as_py() for first, _, _ in parts if first.is_valid]
        lasts = [last.as_py() for _, *both_ in parts for last in both_ if last.is_valid]
        return (min(starts), max(lasts)) if starts else None

    def newest_recorded(self) -> datetime | None:
        """The newest time at which a row was recorded or withdrawn, or None if there are no rows."""
        try:
            parts = [
                time
                for rows in self._read([RECORDED_AT, MEMORY])
                for time in (pc.max(rows[RECORDED_AT]), pc.max(pc.struct_field(rows[MEMORY], ENDED_AT)))
            ]
        except Unreadable:
            ended = sf.unix_micros(column(MEMORY).getField(ENDED_AT))
            times = sf.max(sf.greatest(sf.unix_micros(RECORDED_AT), ended))
            (micros,) = self._frame().agg(times).collect()[0]
            return None if micros is None else _instant(micros)
        return max((time.as_py() for time in parts if time.is_valid), default=None)

    def has_facts_since(self, at: datetime) -> bool:
        """Whether a live version or fact begins at or after an instant."""
        try:
            rows = self._read([VALID_FROM], [(MEMORY, ROLE, ENDED_AT)], are_live, {VALID_FROM: Between(at)})
            return any(len(part) for part in rows)
        except Unreadable:
            live = self._frame().where(version_condition() | fact_condition())
            return bool(live.where(column(VALID_FROM) >= instant(micros_of(at))).take(1))

    def marks_since(self, at: datetime) -> list[Mark]:
        """The remembered copies and truncates at or after an instant, oldest first."""
        names = [VALID_FROM, MEMORY]
        columns = [col for col in self.table.shape.columns if col.name in names]
        rows = stored_marks(self.store, self.table, columns, micros_of(at)).select(names)
        return sorted(map(_mark, rows.to_pylist()), key=lambda mark: mark.at)

    def has_values_before(self, at: datetime, names: Collection[str]) -> bool:
        """Whether a version that begins before an instant has a value in one of these columns."""
        if not names:
            return False
        try:
            before = {VALID_FROM: Between(greatest=at - MICROSECOND)}
            parts = self._read([*names], [(MEMORY, ROLE)], are_versions, before)
            return any(rows[name].null_count < len(rows) for rows in parts for name in names)
        except Unreadable:
            versions = self._frame().where(
                version_condition() & (column(VALID_FROM) < instant(micros_of(at)))
            )
            return bool(versions.where(reduce(or_, (column(name).isNotNull() for name in names))).take(1))

    def scope_columns(self) -> frozenset[str]:
        """The columns in the scopes of remembered copies, including withdrawn copies."""
        try:
            parts = self._read([MEMORY], [(MEMORY, SCOPE)], lambda rows: _scopes(rows).is_valid())
            texts = {text for rows in parts for text in pc.unique(_scopes(rows)).to_pylist()}
        except Unreadable:
            scopes = self._frame().select(column(MEMORY).getField(SCOPE).alias(SCOPE)).distinct()
            texts = {text for (text,) in scopes.collect() if text is not None}
        return frozenset(name for text in texts for name in json.loads(text))

    def _read(
        self,
        names: Sequence[str],
        of: Sequence[str | tuple[str, ...]] = (),
        chosen: Callable[[pa.Table], pa.ChunkedArray] | None = None,
        where: Searches | None = None,
    ) -> Iterator[pa.Table]:
        """The chosen rows of the table's files, in batches. Raises Unreadable if Spark must read them."""
        if not self.table.rows:
            return
        if not self.store.memory.most:
            raise Unreadable("driver-memory is 0")
        try:
            with self.store.memory.lease() as lease:
                searches = [where] if where else []
                yield from LocalRows(self.store, self.table, lease).batches(names, of, chosen, searches)
        except TooLarge as stop:
            raise Unreadable("more than driver-memory holds") from stop

    def _frame(self) -> DataFrame:
        return self.store.spark.table(self.store.sql_name(self.table.shape.table))


def _scopes(rows: pa.Table) -> pa.ChunkedArray:
    return pc.struct_field(rows[MEMORY], SCOPE)


def _mark(row: dict[str, Any]) -> Mark:
    memory = row[MEMORY]
    ids = memory[COLUMNS]
    return Mark(
        row[VALID_FROM],
        None if ids is None else tuple(ids),
        memory[SCOPE],
        memory[KIND] == FactKind.TRUNCATE.value,
    )


def _instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The instant of a copy, in relation to the instants that its table stores.

    `is_stored` is true if a copy for the instant is stored, and `following` is the next known instant.
    `settled` is the settled interval after the copy, or None if the table does not remember copies. If
    `begins` is true, the table remembers copies from this one on. If `has_facts` is true, events, truncates
    or scoped copies are known from the instant on. `other_scopes` are the scopes of other copies for the same
    instant.
    """

    at: datetime
    recorded: datetime
    is_stored: bool = False
    following: datetime | None = None
    in_order: bool = True
    settled: Interval | None = None
    begins: bool = False
    mark: Mark | None = None
    scope: str | None = None
    other_scopes: tuple[str | None, ...] = ()
    has_facts: bool = False

    @property
    def remembers(self) -> bool:
        """Whether the table remembers copies after this one (V28)."""
        return self.settled is not None

    def properties(self) -> dict[str, str]:
        """The table properties that begin a memory, or no properties if none begins."""
        return memory_properties(self.settled or (), self.recorded) if self.begins else {}


def place_copy(
    store: IcebergStore,
    table: IcebergTable | None,
    request: SnapshotRequest,
    evolved: EvolvedShape,
    scope: str | None = None,
) -> CopyPlace:
    """Place a copy in the order of the stored copies. Reads rows only if no commit records the instants.

    Raises Refused for an instant that is too old or settled. Raises UsageError for a copy with
    `deletes='ignore'` if the table remembers its copies.
    """
    now, at = datetime.now(UTC), request.instant
    memory = None if table is None else table.properties.get(SETTLED)
    if request.deletes == "ignore" and (memory is not None or request.begins_memory):
        raise UsageError(
            "partial-copy",
            "The table stores the time of every copy, so each copy must be complete.",
            "Omit `deletes='ignore'`, and send complete copies.",
        )
    if table is None:
        begins = request.begins_memory
        return CopyPlace(at, now, settled=() if begins else None, begins=begins, scope=scope)
    stored = StoredInstants(store, table)
    recorded = max(now, newest_recorded(stored) + MICROSECOND)
    if memory is None and not request.backfill:
        newest = newest_instant(stored)
        _refuse_backwards(newest, request)
        if not request.begins_memory:
            is_stored = at == newest
            return CopyPlace(at, recorded, is_stored, in_order=not (is_stored and request.restate))
    settled = parse_interval(memory) if memory is not None else stored.ends() or ()
    _refuse_settled(at, settled)
    place = CopyPlace(at, recorded, settled=settled, begins=memory is None, scope=scope)
    return _place_among_marks(place, stored, [] if memory is None else stored.marks_since(at), evolved)


def _place_among_marks(
    place: CopyPlace, stored: StoredInstants, marks: Sequence[Mark], evolved: EvolvedShape
) -> CopyPlace:
    """The place, completed from the marks of a table that remembers its copies."""
    at, scope = place.at, place.scope
    copies = [mark for mark in marks if mark.at == at and not mark.truncate]
    own = next((mark for mark in copies if mark.scope == scope), None)
    others = tuple(mark.scope for mark in copies if mark is not own)
    _refuse_overlap(at, scope, others)
    place = replace(place, is_stored=own is not None, mark=own, other_scopes=others)
    scoped = scope is not None or any(mark.truncate or mark.scope is not None for mark in marks)
    if scoped or (ORDERED_BY in stored.table.properties and stored.has_facts_since(at)):
        return replace(place, in_order=False, has_facts=True)
    later = [mark.at for mark in marks if mark.at > at]
    if place.settled and place.settled[0] is not None and place.settled[0] > at:
        later.append(place.settled[0])
    following = min(later, default=None)
    _refuse_narrow(stored, marks, following, evolved)
    return replace(place, following=following, in_order=following is None and own is None)


def _refuse_overlap(at: datetime, scope: str | None, other_scopes: Sequence[str | None]) -> None:
    """Refuse a copy whose scope overlaps the scope of a stored copy for the same instant (V43)."""
    wanted = json.loads(scope or "{}")
    for other in other_scopes:
        other_values = json.loads(other or "{}")
        if not any(name in wanted and wanted[name] != value for name, value in other_values.items()):
            raise Refused(
                "same-instant",
                f"A copy for {iso(at)} with scope {_scope_words(other_values)} is stored, and both scopes "
                "can contain the same records.",
                "Nothing was written; give the copies different times, or scopes that differ in one column.",
            )


def _scope_words(scope: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in scope.items()) or "(all records)"


def _refuse_backwards(newest: datetime | None, request: SnapshotRequest) -> None:
    """Refuse a copy older than the newest copy, if the table does not remember copies (N3)."""
    if newest is None or request.instant >= newest:
        return
    meanwhile = "Nothing was written; read the source again and send the new copy."
    on_purpose = (
        "Nothing was written; use `backfill=True` for copies older than everything stored; to replace "
        "newer ones, rewind and send them again."
    )
    raise Refused(
        "time-backwards",
        f"The copy was taken at {iso(request.instant)}, "
        f"but a newer one from {iso(newest)} is already stored.",
        on_purpose if request.at else meanwhile,
    )


def newest_instant(stored: StoredInstants) -> datetime | None:
    """The instant of the newest copy, from its commit, or else the last start or end of a version."""
    for snapshot in stored.table.lineage:
        copied_at = snapshot.properties.get(COPIED_AT)
        if copied_at:
            return parse_instant(copied_at)
        if snapshot.operation != "replace":  # compaction changes no instant; other commits may
            break
    ends = stored.ends()
    return ends[1] if ends else None


def is_newest(stored: StoredInstants, at: datetime) -> bool:
    """Whether an instant is later than every copy and version of the table."""
    instants = (newest_instant(stored), *(stored.ends() or ()))
    return all(instant is None or instant < at for instant in instants) and not stored.marks_since(at)


def newest_recorded(stored: StoredInstants) -> datetime:
    """The newest recorded time of the table, from its commits, or else from its rows (V10)."""
    current = stored.table.newest
    if current is None:
        return EPOCH
    if recorded := current.properties.get(RECORDED):
        return parse_instant(recorded)
    recorded_times = [
        parse_instant(text) for commit in stored.table.commits if (text := commit.properties.get(RECORDED))
    ]
    if recorded_times and current.properties.get(DOOR) is None:
        return max(recorded_times)
    return max([*recorded_times, stored.newest_recorded() or EPOCH])


def parse_interval(text: str) -> Interval:
    """Parse the settled interval in a table's property."""
    bounds = json.loads(text)
    if not bounds:
        return ()
    first, last = bounds
    return (None if first is None else parse_instant(first), parse_instant(last))


def interval_text(settled: Sequence[datetime | None]) -> str:
    """A settled interval as JSON, for the table's property."""
    return json.dumps([instant and iso(instant) for instant in settled])


def interval_micros(settled: Interval) -> Micros:
    """A settled interval in microseconds."""
    if not settled:
        return ()
    first, last = settled
    return None if first is None else micros_of(first), micros_of(last)


def memory_properties(settled: Sequence[datetime | None], recorded: datetime) -> dict[str, str]:
    """The table properties that begin a memory (V28)."""
    return {SETTLED: interval_text(settled), MEMORY_SINCE: iso(recorded)}


def _refuse_settled(at: datetime, settled: Sequence[datetime | None]) -> None:
    if not settled:
        return
    first, last = settled
    assert last is not None
    if (first is None or first <= at) and at <= last:
        since = "the beginning" if first is None else iso(first)
        raise Refused(
            "settled",
            f"The copy was taken at {iso(at)}, but copies between {since} and {iso(last)} are "
            "no longer accepted.",
            "Nothing was written; only copies of earlier or later times are accepted.",
        )


def refuse_changed_scopes(store: IcebergStore, table: IcebergTable, evolved: EvolvedShape) -> None:
    """Refuse a new name or a type that is not wider for a column of a remembered scope.

    Marks store their scope as text, with the name and the value that the column had (V2).
    """
    changed = set(evolved.renamed)
    for col in evolved.shape.user_columns:
        before = table.shape.column(name := evolved.former_name(col.name))
        if before is not None and not widens(before.type, col.type):
            changed.add(name)
    if not changed or SETTLED not in table.properties:
        return
    if named := sorted(changed & StoredInstants(store, table).scope_columns()):
        raise Refused(
            "settings-changed",
            f"{table.shape.table} stores copies with a scope of column {named[0]}, so the column keeps its "
            "name and type.",
            "Nothing was written; first settle these copies with `settle_before=` of `maintain`, or keep the "
            "column as it is.",
            named,
        )


def _refuse_narrow(
    stored: StoredInstants, marks: Sequence[Mark], following: datetime | None, evolved: EvolvedShape
) -> None:
    """Refuse a copy if the next copy lacked columns and kept their values from earlier copies.

    A column matters if this copy has it, or if a version before the next copy has a value in it.
    """
    if following is None:
        return
    users = {col.name for col in stored.table.shape.user_columns}
    ids = {field["name"]: field["id"] for field in stored.table.fields if field["name"] in users}
    delivered = {evolved.former_name(column.name) for column in evolved.delivered}
    for mark in marks:
        if mark.at != following or mark.columns is None:
            continue
        lacking = {name for name, id_ in ids.items() if id_ not in mark.columns}
        if evolved.added or lacking & delivered or stored.has_values_before(following, lacking):
            raise Refused(
                "settled",
                f"The next copy, from {iso(mark.at)}, lacked columns of the table; this copy would change "
                "their values at that time.",
                "Nothing was written; first send that copy again with all columns and `restate=True`.",
            )


@dataclass(frozen=True, slots=True)
class FeedMemory:
    """The recorded time of a feed, the settled interval after it, and whether memory begins with it (V28)."""

    recorded: datetime
    settled: Interval
    begins: bool

    def properties(self) -> dict[str, str]:
        """The table properties that begin a memory, or no properties if it exists."""
        return memory_properties(self.settled, self.recorded) if self.begins else {}


def feed_memory(store: IcebergStore, table: IcebergTable | None) -> FeedMemory:
    """The recorded time of a feed, and the settled interval of its table."""
    now = datetime.now(UTC)
    if table is None:
        return FeedMemory(now, (), begins=True)
    text = table.properties.get(SETTLED)
    stored = StoredInstants(store, table)
    recorded = max(now, newest_recorded(stored) + MICROSECOND)
    return FeedMemory(recorded, stored.ends() or () if text is None else parse_interval(text), text is None)
