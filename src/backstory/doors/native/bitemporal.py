"""Import a history that AUTO CDC stored in a bitemporal table.

The rows become versions and keep their recorded times. A row of the bitemporal table is a statement. From
`__SYSTEM_START_AT` until just before `__SYSTEM_END_AT`, the source stated that a record had these values from
`__START_AT` until just before `__END_AT`. A statement that is still valid becomes a version. Any other
statement becomes a past row (native.md V8), unless a version with the same values continues it (V6).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import coalesce, count, lag, lead, lit, struct, when

from backstory.doors.native.evolution import delivered_columns, new_table
from backstory.doors.native.options import SnapshotRequest
from backstory.doors.native.refusals import keys_of, refuse_null_keys
from backstory.doors.native.snapshot import DOOR, in_few_files
from backstory.engine.deliver import deliver_change
from backstory.errors import MAX_KEYS, Refused, bad_option
from backstory.model.change import Change, Note
from backstory.model.instant import iso
from backstory.model.layout import (
    BITEMPORAL,
    IS_CURRENT,
    MEMORY,
    RECORDED_AT,
    SYSTEM_TIMES,
    VALID_FROM,
    VALID_TIMES,
    VALID_TO,
    Layout,
)
from backstory.model.table import Shape, TableName, table_name
from backstory.model.versions_layout import END_BEFORE, ENDED_AT, MEMORY_TYPE, RECORDED, ROLE, Role
from backstory.reading.lifetimes import ENDED, SPARK, STARTED, STATED_FROM, STATED_TO, internal_name
from backstory.spark.session import hold_settings
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column, instant, micros_of, quote
from backstory.stores.iceberg.schema import spark_type
from backstory.stores.iceberg.store import IcebergStore, IcebergTable, load
from backstory.stores.port import table_exists
from backstory.strategies.frames import comparable
from backstory.upkeep.adopting import Adopted, key_or_identifiers, refuse_key, refuse_times, require_iceberg
from backstory.upkeep.laws.checks import broken_in_frame
from backstory.upkeep.laws.terms import LawTerms

# A property of the new table: the table, the snapshot and the key that it was imported from, as JSON.
IMPORTED_FROM: Final = "backstory.imported-from"
_OWN: Final = (*VALID_TIMES, *SYSTEM_TIMES)
_TIMES: Final = (STARTED, ENDED, STATED_FROM, STATED_TO)
_VALUES: Final = internal_name("values")
# The counted rows: all rows, rows that are still valid, and faults in the order in which they are refused.
_NO_KEY, _EMPTY, _AHEAD = "no key", "empty", "ahead"
_ROWS, _LIVE = "rows", "live"


@dataclass(frozen=True, slots=True, repr=False)
class Imported(Adopted):
    """A history that was imported into a new table from the newest commit of `table`.

    `counts` contains the number of statements that are still valid (`versions`) and of all other statements
    (`past`).
    """

    into: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    recorded_at: str | None = None
    snapshot_id: int | None = None


def import_history(
    store: IcebergStore,
    table: TableName,
    into: str | None,
    key: str | Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> Imported:
    """Import a bitemporal history into a new table of layout `versions`, in one commit.

    The source is unchanged. `key` has one or more column names. By default, the table's identifier fields are
    used. A second import of the same commit changes nothing. Raises UsageError for a missing table, column or
    key, and if `into` is missing. Raises Refused if the new table has other rows, or if rows contradict each
    other.
    """
    if not into:
        raise bad_option(
            f"Rows of layout {BITEMPORAL} are imported into a new table.", "Name it with `into=`."
        )
    new, recorded = table_name(into), datetime.now(UTC)
    with hold_settings(store.session), translate_faults(table):
        source = _read_source(store, table, key)
        counts = _refuse_faults(source, recorded)
        columns, empty = delivered_columns(source.statements.select(*map(quote, source.columns)).schema)
        shape = new_table(new, columns, empty, SnapshotRequest(into=into, key=source.key)).shape
        origin = json.dumps({"table": str(table), "snapshot": source.snapshot, "key": list(source.key)})
        versions = _as_versions(source, shape)
        _refuse_contradictions(source, shape, versions, recorded)
        change = Change(
            counts,
            added=in_few_files(versions, sum(counts.values()), shape.key),
            into=shape,
            properties={IMPORTED_FROM: origin},
        )

        def plan() -> tuple[IcebergTable | None, Change | None]:
            stored = load(store, new)
            if stored is not None and stored.properties.get(IMPORTED_FROM) != origin:
                raise table_exists(new)
            return stored, None if stored else change

        note = Note(DOOR, f"{BITEMPORAL} {origin}", {RECORDED: iso(recorded)})
        is_new = load(store, new) is None
        commit = deliver_change(store, [new], note, plan, dry_run=dry_run)
    committed = commit is not None and commit.snapshot_id is not None
    return Imported(
        str(table),
        BITEMPORAL,
        list(source.key),
        is_new,
        str(new),
        counts,
        iso(recorded) if committed else None,
        commit.snapshot_id if commit is not None else None,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """The statements of a source at one snapshot: its own columns, and their four times in UTC."""

    shape: Shape
    key: tuple[str, ...]
    snapshot: int | None
    statements: DataFrame

    @property
    def columns(self) -> list[str]:
        """The columns other than AUTO CDC's four times."""
        return [name for name in self.shape.names if name not in _OWN]


def _read_source(store: IcebergStore, table: TableName, key: str | Sequence[str]) -> _Source:
    stored = require_iceberg(store, table)
    refuse_times(stored.shape, _OWN, BITEMPORAL)
    names = key_or_identifiers(stored, key)
    refuse_key(stored.shape, Layout.AUTOCDC, names, SYSTEM_TIMES, BITEMPORAL)
    newest = stored.newest
    shape = stored.shape if newest is None else stored.shape_then(newest.schema_id)
    rows = store.sql_name(table) if newest is None else f"{store.sql_name(table)} VERSION AS OF {newest.id}"
    span = Layout.AUTOCDC.span
    assert span is not None
    assert span.far is not None
    kinds = {col.name: col.type.kind for col in shape.columns}
    instants = [SPARK.read_instant(quote(name), kinds.get(name)) for name in _OWN]
    # Either end may be a time in the far future, which means no end.
    instants[1::2] = [f"CASE WHEN {end} < {SPARK.at(span.far)} THEN {end} END" for end in instants[1::2]]
    times = [f"{sql} AS {quote(name)}" for sql, name in zip(instants, _TIMES, strict=True)]
    own = [quote(name) for name in shape.names if name not in _OWN]
    statements = store.spark.sql(f"SELECT {', '.join([*own, *times])} FROM {rows}")  # noqa: S608 - quoted
    return _Source(shape, names, None if newest is None else newest.id, statements)


def _refuse_faults(source: _Source, recorded: datetime) -> Mapping[str, int]:
    """Raise Refused for faulty rows. Returns the counts of current and past statements."""
    faults = _faults(source, recorded)
    wanted = {_ROWS: lit(True), _LIVE: column(STATED_TO).isNull(), **faults}
    sums = [count(when(condition, lit(1))).alias(name) for name, condition in wanted.items()]
    (counted,) = source.statements.agg(*sums).collect()

    def keys(fault: str) -> list[str]:
        return keys_of(source.statements.where(faults[fault]), source.key)

    if not counted[_ROWS]:
        raise Refused(
            "empty-snapshot",
            f"{source.shape.table} has no rows.",
            "Nothing was written; import the table when it has rows.",
        )
    refuse_null_keys(counted[_NO_KEY], source.key, lambda: keys(_NO_KEY))
    if number := counted[_EMPTY]:
        raise Refused(
            "empty-span",
            f"{_rows(number)} of {source.shape.table} ends at or before its start, or has no start.",
            f"Nothing was written; fix the columns {', '.join(_OWN)} of these rows, or delete the rows.",
            keys(_EMPTY),
        )
    if number := counted[_AHEAD]:
        raise Refused(
            "time-ahead",
            f"{_rows(number)} of {source.shape.table} was recorded after {iso(recorded)}, which is now.",
            f"Nothing was written; {' and '.join(SYSTEM_TIMES)} must be in the past.",
            keys(_AHEAD),
        )
    return {"versions": counted[_LIVE], "past": counted[_ROWS] - counted[_LIVE]}


def _rows(number: int) -> str:
    return f"At least one of {number} rows" if number > 1 else "A row"


def _faults(source: _Source, recorded: datetime) -> dict[str, Column]:
    now = instant(micros_of(recorded))
    start, end, since, until = map(column, _TIMES)
    empty = [start.isNull(), since.isNull(), end <= start, until <= since]
    ahead = [since > now, until > now]
    return {
        _NO_KEY: reduce(or_, (column(name).isNull() for name in source.key)),
        _EMPTY: reduce(or_, (coalesce(condition, lit(False)) for condition in empty)),
        _AHEAD: reduce(or_, (coalesce(condition, lit(False)) for condition in ahead)),
    }


def _as_versions(source: _Source, shape: Shape) -> DataFrame:
    """The rows of a native table with the same statements (V6 to V8).

    If a version continues a statement with the same values, both become one row. If their ends differ, the
    row also stores the former end.
    """
    rows = source.statements
    values = [
        comparable(column(name), rows.schema[name].dataType).alias(f"value {place}")
        for place, name in enumerate(source.columns)
        if name not in source.key
    ]
    rows = rows.withColumn(_VALUES, struct(lit(0).alias("none"), *values))
    # Statements with the same start all cover it, so they follow each other in recorded time.
    ordered = Window.partitionBy(*map(column, source.key), column(STARTED)).orderBy(column(STATED_FROM))
    start, end, since, until, alike = map(column, (*_TIMES, _VALUES))

    def beside(step: Any, name: str) -> Column:
        return step(column(name)).over(ordered)

    stands = until.isNull()
    continues = stands & (beside(lag, STATED_TO) == since) & beside(lag, _VALUES).eqNullSafe(alike)
    is_continued = (
        (beside(lead, STATED_FROM) == until)
        & beside(lead, STATED_TO).isNull()
        & beside(lead, _VALUES).eqNullSafe(alike)
    )
    continues = coalesce(continues, lit(False))
    moved = continues & ~beside(lag, ENDED).eqNullSafe(end)
    memory = {
        ROLE: when(~stands, lit(Role.PAST.value)),
        ENDED_AT: when(~stands, until).when(moved, since),
        END_BEFORE: when(~stands, end).when(moved, beside(lag, ENDED)),
    }
    fields = [memory.get(name, lit(None)).alias(name) for name, _ in MEMORY_TYPE.parts]
    own = {
        VALID_FROM: start,
        VALID_TO: when(stands, end).otherwise(start),
        IS_CURRENT: stands & end.isNull(),
        RECORDED_AT: when(continues, beside(lag, STATED_FROM)).otherwise(since),
        MEMORY: when(memory[ENDED_AT].isNotNull(), struct(*fields).cast(spark_type(MEMORY_TYPE))),
    }
    absorbed = internal_name("absorbed")
    stored = [*map(column, source.columns), *(sql.alias(name) for name, sql in own.items())]
    rows = rows.select(*stored, coalesce(is_continued, lit(False)).alias(absorbed))
    return rows.where(~column(absorbed)).select(*map(quote, shape.names))


def _refuse_contradictions(source: _Source, shape: Shape, versions: DataFrame, recorded: datetime) -> None:
    """Raise Refused if the new table would break a law.

    A law is broken if two rows of a record are valid at the same instant and the same recorded time.
    """
    broken = broken_in_frame(versions, LawTerms(shape, newest=micros_of(recorded)))
    if not broken:
        return
    keys = sorted({key for _, some in broken.values() for key in some})[:MAX_KEYS]
    raise Refused(
        "overlapping-rows",
        f"Rows of {source.shape.table} contradict each other: two of a record are true at the same time, "
        f"and known at the same time ({', '.join(sorted(broken))}).",
        f"Nothing was written; check that `key=` has all KEYS of the flow, now {', '.join(source.key)}, "
        "or fix the rows at their source.",
        keys,
    )


def refuse_into(layout: str, into: object, note: str | None, author: str | None) -> None:
    """Raise UsageError for the options of an import if the table is not bitemporal."""
    values = {"into": into, "note": note, "author": author}
    if wrong := [name for name, value in values.items() if value]:
        raise bad_option(
            f"`{wrong[0]}=` is for layout {BITEMPORAL}, whose rows are imported.",
            f"Omit it: a table of layout {layout} stays as it is.",
        )
