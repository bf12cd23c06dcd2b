"""Forget a record: out of every version, snapshot, file and manifest (native.md V87 to V89)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from backstory.engine.upkeep import erase
from backstory.errors import Failed
from backstory.model.cursor import TAG as CURSOR
from backstory.model.history import ARCHIVE_SUFFIX
from backstory.model.instant import iso
from backstory.model.layout import HIST_SUFFIX, MEMORY, Layout
from backstory.model.remembered import ROLE, SCOPE
from backstory.model.table import TableName
from backstory.reading.frames.records import is_record
from backstory.reading.keys import key_of
from backstory.stores.iceberg.erasures import Erased, Erasure, refuse_unfinished
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.places import Surroundings, surroundings
from backstory.stores.iceberg.searching import FoundFiles, search, with_ids
from backstory.stores.iceberg.snapshots import newest, references
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.iceberg.unfinished import left_outside, unfinished
from backstory.upkeep.carried import carried
from backstory.upkeep.certificate import Certificate, Record
from backstory.upkeep.forgettable import refuse_read, refuse_unerasable, refuse_unforgetting
from backstory.upkeep.remains import outside, remains

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


VERSION: Final = "version"


def forget(
    store: Store, name: TableName, key: object, *, drop_cursors: bool = False, apply: bool = False
) -> Certificate:
    """Remove a record from every version, old snapshots and files included; without `apply` only look.

    Of a history the base and the archive forget it too. A second time there is nothing, and no commit; what
    was interrupted is finished. No other program may write to the table meanwhile.

    Raises UsageError for a table that cannot forget; Refused while somebody may still read what was
    (`cursor-behind`, `foreign-reference`), and where files cannot be searched or may be another's
    (`shared-folder`, `gc-disabled`, `other-format`, `equality-deletes`, `encrypted-table`); TryAgain where
    files of a day or less are not named yet (`writer-at-work`); Failed where the record is there after all
    (`not-forgotten`).
    """
    stored = existing(store, name)
    refuse_unforgetting(store, stored)
    tables = [stored, *(existing(store, each) for each in _beside(store, stored))]
    folders = frozenset(name for each in tables for name in each.shape.layout.folders)
    record = Record(key_of(stored.shape, key), folders)
    for each in tables:
        refuse_read(each, drop_cursors=drop_cursors)
    named = [refuse_unerasable(store, each) for each in tables]
    around = [surroundings(store, each, files.now.all) for each, files in zip(tables, named, strict=True)]
    sought = [_search_record(store, *each, record) for each in zip(tables, around, strict=True)]
    for one in sought if apply else ():
        if one.open:
            refuse_unfinished(one.table, one.found)
    first, *others = (_forgotten(store, one, record) if apply else one.told for one in sought)
    return replace(first, also=[each.sealed().to_dict() for each in others]).sealed()


@dataclass(frozen=True, slots=True)
class _Sought:
    """A table, which of its rows are the record's, the files that hold them, and the certificate so far."""

    table: StoredTable
    around: Surroundings
    condition: "Column"
    columns: "StructType"
    found: FoundFiles
    told: Certificate

    @property
    def open(self) -> bool:
        """Whether there is something to do: files hold the record, or an erasure was interrupted."""
        return bool(self.found.holding or unfinished(self.table).record)


def _search_record(store: Store, table: StoredTable, around: Surroundings, record: Record) -> _Sought:
    condition, columns = _condition(store, table, record.key)
    files = search(store, table, condition, columns, around)
    rows = _rows(store, table, condition)
    if rows and not files.holding:
        raise _not_forgotten(f"{table.shape.table} shows the record, but it was found in none of its files.")
    certificate = Certificate(
        str(table.shape.table),
        record.digest,
        record.salt,
        status="planned" if files.holding else "no-record",
        rows=rows,
        searched=files.searched,
        files_rewritten=len(files.holding),
        left=remains(store, table, record, files, around) or 0,
    )
    return _Sought(table, around, condition, columns, files, certificate)


def _not_forgotten(told: str) -> Failed:
    return Failed(
        "not-forgotten",
        told,
        "Stop every other program that writes to it, then run it again; if it fails again, report it.",
    )


def _beside(store: Store, table: StoredTable) -> list[TableName]:
    """The base and the archive of a history."""
    name = table.shape.table
    if table.shape.layout is not Layout.HIST:
        return []
    found = (name.name.removesuffix(HIST_SUFFIX), name.name + ARCHIVE_SUFFIX)
    return [
        each
        for each in (TableName(name.schema, other) for other in found)
        if each != name and (stored := load(store, each)) and set(table.shape.key) <= set(stored.shape.names)
    ]


def _forgotten(store: Store, sought: _Sought, record: Record) -> Certificate:
    """The certificate of one table."""
    name, condition, columns = sought.table.shape.table, sought.condition, sought.columns
    if not sought.open:
        return sought.told

    def chosen(stored: StoredTable) -> Erasure | None:
        again = search(store, stored, condition, columns, sought.around)
        before = unfinished(stored)
        if not (again.holding or before.record):
            return None
        current = newest(stored)
        tags = {each.name: current is None or each.snapshot_id != current.id for each in references(stored)}
        told = {each: text for each, text in carried(stored, {}).items() if not record.stands_in(text)}
        known = (record.named(each) for each in (*before.kept, *left_outside(stored)))
        mark = replace(before, kept=[*dict.fromkeys([*known, *outside(stored, record, again)])])
        if again.holding:
            mark = replace(mark, record=record.mark)
        return Erasure(again, told, tags, mark)

    consumers = [each.name.removeprefix(CURSOR) for each in references(sought.table)]
    done = erase(store, name, chosen, lambda rows: rows.where(~condition))
    left = existing(store, name)
    again = search(store, left, condition, columns, sought.around)
    shown = any(_rows(store, left, condition, each.id) for each in left.snapshots)
    if done is None or again.holding or shown or _rows(store, left, condition):
        raise _not_forgotten(f"{name} still has the record in {max(1, len(again.holding))} of its files.")
    told = remains(store, left, record, again, sought.around, done.left)
    if not (sought.found.holding or record.is_marked(unfinished(sought.table).record)):
        return replace(sought.told, left=told or 0)  # what was finished is the erasure of another record
    return _certified(sought, record, done, again, consumers, told)


def _certified(
    sought: _Sought, record: Record, done: Erased, again: FoundFiles, consumers: list[str], left: list[str]
) -> Certificate:
    files = [f"a file that is not deleted: {record.named(each)}" for each in done.left]
    return replace(
        sought.told,
        status="forgotten",
        applied=True,
        forgotten_at=iso(datetime.now(UTC)),
        files_rewritten=done.rewritten,
        files_deleted=record.without_paths(done.data),
        snapshots_expired=done.snapshots,
        metadata_deleted=record.without_paths(done.metadata),
        statistics_deleted=record.without_paths(done.statistics),
        searched=again.searched,
        consumers=[record.named(each) for each in consumers],
        left=[*files, *left] or 0,
    )


def _condition(store: Store, table: StoredTable, key: Mapping[str, object]) -> "tuple[Column, StructType]":
    """Whether a row is of the record, and the columns that tell it.

    A mark of a copy whose scope was this record tells its key.
    """
    from pyspark.sql.functions import coalesce, get_json_object, lit

    wanted: dict[str, tuple[str, ...]] = dict.fromkeys(key, ())
    if table.shape.layout is Layout.VERSIONS:
        wanted[MEMORY] = (SCOPE,)
    columns = with_ids(store, table, wanted)
    condition = is_record(key, {each: columns[each].dataType for each in key})
    if MEMORY not in wanted:
        return condition, columns
    paths = {"$['" + name.replace("'", "\\'") + "']": str(value) for name, value in key.items()}
    scoped = (get_json_object(column(MEMORY)[SCOPE], path) == value for path, value in paths.items())
    return condition | coalesce(reduce(and_, scoped), lit(False)), columns


def _rows(
    store: Store, table: StoredTable, condition: "Column", snapshot: int | None = None
) -> dict[str, int]:
    """The record's rows by role, as Spark reads the table, or a snapshot of it."""
    from pyspark.sql.functions import coalesce, lit

    name = store.sql_name(table.shape.table)
    with translate_faults(table.shape.table):
        store.spark.catalog.refreshTable(name)
        native = table.shape.layout is Layout.VERSIONS
        role = coalesce(column(MEMORY)[ROLE], lit(VERSION)) if native else lit(_word(table.shape.layout))
        stored = table.shape.table
        rows = store.spark.table(name) if snapshot is None else rows_at(store, stored, snapshot)
        found = rows.where(condition).groupBy(role.alias("role")).count()
        return {row["role"]: row["count"] for row in found.collect()}


def _word(layout: Layout) -> str:
    return VERSION if layout.span else "row"
