"""Instants and marks of a table's rows: read by the driver where its files open there, else by Spark."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backstory.doors.native.feeds.stored import live_rows
from backstory.formats.memory import TooLarge
from backstory.model.instant import EPOCH
from backstory.model.layout import MEMORY, RECORDED_AT, VALID_FROM, VALID_TO
from backstory.model.remembered import COLUMNS, ENDED_AT, KIND, ROLE, SCOPE, Role, Told
from backstory.stores.iceberg.literals import column, instant, micros_of
from backstory.stores.iceberg.local_rows import LocalRows
from backstory.stores.iceberg.search_bounds import both, without
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.metadata.hidden import Unreadable
from backstory.strategies.copies.frames import marked, version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARKS: Final = (Told.COPY.value, Told.TRUNCATE.value)


@dataclass(frozen=True, slots=True)
class Mark:
    """A remembered copy or truncate: its instant, the ids of a copy's columns, None for all, its scope."""

    at: datetime
    columns: tuple[int, ...] | None
    scope: str | None = None
    truncate: bool = False


@dataclass(frozen=True, slots=True)
class StoredInstants:
    """What the rows of a table say of its copies."""

    store: Store
    table: StoredTable

    def ends(self) -> tuple[datetime, datetime] | None:
        """The first and the last start or end of any version; None without versions."""
        try:
            parts = [
                (pc.min(rows[VALID_FROM]), pc.max(rows[VALID_FROM]), pc.max(rows[VALID_TO]))
                for rows in self._read([VALID_FROM, VALID_TO], [(MEMORY, ROLE)], _is_version)
            ]
        except Unreadable:
            return self._ends_by_spark()
        starts = [first.as_py() for first, _, _ in parts if first.is_valid]
        lasts = [last.as_py() for _, *both_ in parts for last in both_ if last.is_valid]
        return (min(starts), max(lasts)) if starts else None

    def newest_recorded(self) -> datetime | None:
        """The newest time at which a row was recorded, or at which what it says was taken back."""
        try:
            parts = [
                each
                for rows in self._read([RECORDED_AT, MEMORY])
                for each in (pc.max(rows[RECORDED_AT]), pc.max(pc.struct_field(rows[MEMORY], ENDED_AT)))
            ]
        except Unreadable:
            return self._newest_recorded_by_spark()
        return max((each.as_py() for each in parts if each.is_valid), default=None)

    def has_facts_since(self, at: datetime) -> bool:
        """Whether a live row, version or fact, begins at or after an instant."""
        try:
            rows = self._read(
                [VALID_FROM], [VALID_FROM, (MEMORY, ROLE, ENDED_AT)], _live_since(at), _since(at)
            )
            return any(len(each) for each in rows)
        except Unreadable:
            memory = column(MEMORY)
            fact = (memory.getField(ROLE) == Role.FACT.value) & memory.getField(ENDED_AT).isNull()
            live = self._frame().where(memory.getField(ROLE).isNull() | fact)
            return bool(live.where(column(VALID_FROM) >= instant(micros_of(at))).take(1))

    def marks_since(self, at: datetime) -> list[Mark]:
        """The remembered copies and truncates at or after an instant, oldest first."""
        key = self.table.shape.key[0]  # which marks do not have
        of: list[str | tuple[str, ...]] = [VALID_FROM, (MEMORY, ROLE, ENDED_AT, KIND)]
        try:
            parts = self._read([VALID_FROM, MEMORY], of, _marks_since(at), both(_since(at), without(key)))
            rows = [row for each in parts for row in each.to_pylist()]
        except Unreadable:
            rows = self._marks_by_spark(at)
        return sorted(map(_mark, rows), key=lambda mark: mark.at)

    def _read(
        self,
        names: Sequence[str],
        of: Sequence[str | tuple[str, ...]] = (),
        chosen: Callable[[pa.Table], pa.ChunkedArray] | None = None,
        where: Any = None,
    ) -> Iterator[pa.Table]:
        """The chosen rows of the table's files, some at a time; raises Unreadable where Spark must read."""
        if not self.table.rows:
            return
        if not self.store.memory.most:
            raise Unreadable("driver-memory is 0")
        try:
            with self.store.memory.lease() as lease:
                yield from LocalRows(self.store, self.table, lease).batches(names, of, chosen, where=where)
        except TooLarge as stop:
            raise Unreadable("more than driver-memory holds") from stop

    def _frame(self) -> "DataFrame":
        return self.store.spark.table(self.store.sql_name(self.table.shape.table))

    def _ends_by_spark(self) -> tuple[datetime, datetime] | None:
        from pyspark.sql.functions import greatest, unix_micros
        from pyspark.sql.functions import max as last
        from pyspark.sql.functions import min as first

        start, end = (unix_micros(column(name)) for name in (VALID_FROM, VALID_TO))
        (row,) = self._frame().where(version()).agg(first(start), last(greatest(start, end))).collect()
        return None if row[0] is None else (_instant(row[0]), _instant(row[1]))

    def _newest_recorded_by_spark(self) -> datetime | None:
        from pyspark.sql.functions import greatest, unix_micros
        from pyspark.sql.functions import max as newest

        times = newest(greatest(unix_micros(RECORDED_AT), unix_micros(column(MEMORY).getField(ENDED_AT))))
        (micros,) = self._frame().agg(times).collect()[0]
        return None if micros is None else _instant(micros)

    def _marks_by_spark(self, at: datetime) -> list[dict[str, Any]]:
        from pyspark.sql.functions import unix_micros

        rows = self._frame().where(marked() & (column(VALID_FROM) >= instant(micros_of(at))))
        memory = column(MEMORY)
        fields = (memory.getField(name).alias(name) for name in (COLUMNS, SCOPE, KIND))
        return [
            {VALID_FROM: _instant(micros), MEMORY: {COLUMNS: ids, SCOPE: scope, KIND: kind}}
            for micros, ids, scope, kind in rows.select(unix_micros(column(VALID_FROM)), *fields).collect()
        ]


def _mark(row: dict[str, Any]) -> Mark:
    memory = row[MEMORY]
    ids = memory[COLUMNS]
    return Mark(
        row[VALID_FROM],
        None if ids is None else tuple(ids),
        memory[SCOPE],
        memory[KIND] == Told.TRUNCATE.value,
    )


def _is_version(rows: pa.Table) -> pa.ChunkedArray:
    return pc.is_null(pc.struct_field(rows[MEMORY], ROLE))


def _live_since(at: datetime) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.and_(live_rows(rows), _begins_since(at, rows))


def _marks_since(at: datetime) -> Callable[[pa.Table], pa.ChunkedArray]:
    def chosen(rows: pa.Table) -> pa.ChunkedArray:
        says = pc.is_in(pc.struct_field(rows[MEMORY], KIND), pa.array(MARKS))
        fact = pc.equal(pc.struct_field(rows[MEMORY], ROLE), Role.FACT.value)
        return pc.and_(pc.and_(says, pc.fill_null(fact, False)), _live_since(at)(rows))

    return chosen


def _begins_since(at: datetime, rows: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(pc.greater_equal(rows[VALID_FROM], pa.scalar(at, rows[VALID_FROM].type)), False)


def _since(at: datetime) -> dict[str, str]:
    """Where rows are that begin at or after an instant, as Iceberg's JSON has it."""
    return {"type": "gt-eq", "term": VALID_FROM, "value": at.astimezone(UTC).isoformat()}


def _instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
