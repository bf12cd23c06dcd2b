"""Forget a record: out of every version, snapshot, file and manifest (native.md V87 to V89).

Which tables can forget a record; what cannot be done is told before anything is searched or written.

What may still tell of a record where a table has its files, by name (native.md V89).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

from backstory.engine.upkeep import erase
from backstory.errors import Failed, Refused, UsageError, option
from backstory.model.change_feed import CURSOR_TAG as CURSOR
from backstory.model.history import ARCHIVE_SUFFIX
from backstory.model.instant import iso
from backstory.model.layout import HIST_SUFFIX, MEMORY, Layout
from backstory.model.table import TableName
from backstory.model.versions_layout import ROLE, SCOPE
from backstory.reading.frames.versions import is_record
from backstory.reading.selection import key_of
from backstory.stores.iceberg.erasures import (
    Erased,
    Erasure,
    FoundFiles,
    columns_with_ids,
    files_left_outside,
    is_location,
    refuse_unfinished,
    search,
    unfinished_erasure,
)
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.places import Surroundings, bare_location, places_of, surroundings
from backstory.stores.iceberg.reachable import HIDING, NamedFiles, named_files
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.snapshots import newest_snapshot, references
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.upkeep.certificate import Certificate, ForgottenRecord
from backstory.upkeep.maintaining import GC, carried_properties

PARQUET: Final = "PARQUET"
DANGLING: Final = "'remove-dangling-deletes', 'true'"
FORMAT, ENCRYPTED = "write.format.default", "encryption.key-id"


def refuse_other_layouts(store: Store, table: StoredTable) -> None:
    """Event logs are chained by hashes of their rows; logs tell of runs; a base belongs to its history."""
    name, layout = table.shape.table, table.shape.layout
    history = TableName(name.schema, name.name + HIST_SUFFIX)
    if layout in {Layout.ODF, Layout.ODF_LOG, Layout.RUN_LOG}:
        raise UsageError(
            "append-only",
            f"{name} is a log: hashes of its rows chain each commit to the one before.",
            "Nothing was written; drop the dataset and add it again without the record.",
        )
    if layout is Layout.BASE and load(store, history) is not None:
        raise UsageError(
            "no-forget",
            f"{name} is the base of {history}.",
            f"Forget it in {history}: its base is erased with it.",
        )
    if not table.shape.key:
        raise UsageError("no-key", f"{name} has no key.", "Only records with a key can be erased.")


def refuse_readers(table: StoredTable, *, drop_cursors: bool) -> None:
    """Refused where somebody may still read what was: branches, tags, and cursors that are behind."""
    current = newest_snapshot(table)
    names = references(table)
    foreign = [each.name for each in names if not each.name.startswith(CURSOR)]
    behind = [each.name for each in names if current is None or each.snapshot_id != current.id]
    if foreign:
        raise Refused(
            "foreign-reference",
            f"{table.shape.table} has branches or tags of other programs, which keep old rows.",
            "Nothing was written; drop them first.",
            foreign,
        )
    if behind and not drop_cursors:
        raise Refused(
            "cursor-behind",
            f"Consumers of {table.shape.table} have not read every change.",
            "Nothing was written; let them read the rest, or drop their cursors with "
            f"{option('drop_cursors', True)}.",
            [each.removeprefix(CURSOR) for each in behind],
        )


def refuse_other_files(store: Store, table: StoredTable) -> NamedFiles:
    """Refused for what cannot be searched or may not be deleted; the files that the table names."""
    name, properties = table.shape.table, table.properties
    sql = store.sql_name(name)
    if properties.get(GC, "true").lower() == "false":
        raise Refused(
            "gc-disabled",
            f"{name} may not delete files ({GC} is false), which protects files that other tables read.",
            "Nothing was written; make sure that no other table does, then ALTER TABLE "
            f"{sql} SET TBLPROPERTIES ('{GC}' = 'true').",
        )
    if properties.get(FORMAT, PARQUET).upper() != PARQUET:
        raise _other_format(sql, name, [properties[FORMAT].upper()])
    named = named_files(store, table)
    rows = [named.files[each] for each in sorted(named.now.all)]
    if ENCRYPTED in properties or any(each.secret for each in rows):
        raise Refused(
            "encrypted-table",
            f"{name} has encrypted files, which cannot be searched.",
            "Nothing was written; delete the record with the program that encrypts them, and let the "
            "snapshots before expire.",
        )
    formats = {each.format for each in rows if each.kind == "DATA"} - {PARQUET}
    if formats:
        raise _other_format(sql, name, formats)
    if any(each.kind == "EQUALITY_DELETES" for each in rows):
        raise Refused(
            "equality-deletes",
            f"Another program deleted rows of {name} by their values, which may contain the key.",
            f"Nothing was written; {_rewrite_remedy(sql, DANGLING)}.",
        )
    return named


def _other_format(sql: str, name: TableName, formats: Collection[str]) -> Refused:
    return Refused(
        "other-format",
        f"{name} has data files of {', '.join(sorted(formats))}; records can be erased from Parquet "
        "files only.",
        f"Nothing was written; ALTER TABLE {sql} SET TBLPROPERTIES ('{FORMAT}' = 'parquet'), then "
        f"{_rewrite_remedy(sql)}.",
    )


def _rewrite_remedy(sql: str, *more: str) -> str:
    """The imperative to rewrite a table's files, with these options of Iceberg's procedure."""
    catalog, _, table = sql.partition(".")
    options = ", ".join(["'rewrite-all', 'true'", *more])
    return (
        f"rewrite its files (CALL {catalog}.system.rewrite_data_files(table => '{table}', "
        f"options => map({options}))), and expire the earlier snapshots (expire_snapshots)"
    )


VECTORS: Final = "PUFFIN"
OUTSIDE: Final = "a file outside of the table's folder"


def remains(
    store: Store,
    table: StoredTable,
    record: ForgottenRecord,
    found: FoundFiles,
    around: Surroundings,
    kept: Collection[str] = (),
) -> list[str]:
    """What cannot be searched, is not the table's to delete, or is named after the key; empty for nothing.

    Files of `kept` are told elsewhere.
    """
    return [
        *_remaining_files(table, record, found, around, kept),
        *_remaining_names(store, table, record),
        *_remaining_positions(store, table, record, found),
        *_storage_limits(table, found),
    ]


def outside_files(table: StoredTable, record: ForgottenRecord, found: FoundFiles) -> list[str]:
    """The files that hold the record and are not the table's to delete, by names that tell no key."""
    places = places_of(table.iceberg)
    return [record.show(each) for each in sorted(found.holding) if not places.owns(each)]


def _remaining_files(
    table: StoredTable,
    record: ForgottenRecord,
    found: FoundFiles,
    around: Surroundings,
    kept: Collection[str],
) -> Iterator[str]:
    places = places_of(table.iceberg)
    known = {name for each in kept for name in (bare_location(each), record.show(each))}
    elsewhere = {each for each in found.foreign if not places.owns(each)}
    for each in outside_files(table, record, found):
        yield f"{OUTSIDE}, which holds the record: {each}"
    for each in files_left_outside(table):
        if not is_location(each) and each not in known:
            yield f"{OUTSIDE}, which an earlier erasure left and which cannot be searched: {each}"
    for told, files in (
        (f"{OUTSIDE}, which holds the record", elsewhere),
        ("a file of unknown origin, which holds the record", found.foreign - elsewhere),
        ("a file of unknown origin, which cannot be searched", found.unread),
        ("files that no metadata names in a folder of other tables, too", around.shared),
    ):
        for each in sorted(files):
            if bare_location(each) not in known:
                yield f"{told}: {record.show(each)}"


def _remaining_names(store: Store, table: StoredTable, record: ForgottenRecord) -> Iterator[str]:
    if unfinished_erasure(table).record:
        yield "files of a record whose erasure was interrupted: the next erasure of any record deletes them"
    for name, value in table.properties.items():
        if record.occurs_in(value) or record.occurs_in(name):
            yield f"table property {record.show(name)}"
    for each in references(table):
        if record.occurs_in(each.name):
            yield f"cursor {record.show(each.name)}"
    ids = {each["name"]: each["id"] for each in fields_of(store.jvm, table.iceberg.schema())}
    for schema in dict(table.iceberg.schemas()).values():
        for field in fields_of(store.jvm, schema):
            if field["name"] in record.key and field["id"] != ids.get(field["name"]):
                yield f"values of a column {field['name']} that was dropped, in data files"
                return


def _remaining_positions(
    store: Store, table: StoredTable, record: ForgottenRecord, found: FoundFiles
) -> Iterator[str]:
    """Files of positions name the data files whose rows they hide, and folders may be named after the key."""
    hiding = (each for each in found.named.files.values() if each.kind in HIDING and not each.past)
    if not any(each.format != VECTORS for each in hiding):
        return
    live = {bare_location(each) for each in found.named.now.data}
    name = store.sql_name(table.shape.table, "position_deletes")
    for row in store.spark.table(name).select("file_path").distinct().collect():
        told = str(row["file_path"])
        if bare_location(told) not in live and record.show(told) != told:
            yield f"deletes by position in a file that no longer exists: {record.show(told)}"


def _storage_limits(table: StoredTable, found: FoundFiles) -> Iterator[str]:
    place = str(table.iceberg.location())
    if found.listed is None:
        yield "files that no metadata names: the storage lists none"
    if "://" in place and not place.startswith("file:"):
        yield f"older versions of objects, where {place.partition('://')[0]} keeps them"


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
    refuse_other_layouts(store, stored)
    tables = [stored, *(existing(store, each) for each in _related_tables(store, stored))]
    folders = frozenset(name for each in tables for name in each.shape.layout.folders)
    record = ForgottenRecord(key_of(stored.shape, key), folders)
    for each in tables:
        refuse_readers(each, drop_cursors=drop_cursors)
    named = [refuse_other_files(store, each) for each in tables]
    around = [surroundings(store, each, files.now.all) for each, files in zip(tables, named, strict=True)]
    sought = [_search_record(store, *each, record) for each in zip(tables, around, strict=True)]
    for one in sought if apply else ():
        if one.open:
            refuse_unfinished(one.table, one.found)
    first, *others = (_forget_in_table(store, one, record) if apply else one.told for one in sought)
    return replace(first, also=[each.seal().to_dict() for each in others]).seal()


@dataclass(frozen=True, slots=True)
class _RecordSearch:
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
        return bool(self.found.holding or unfinished_erasure(self.table).record)


def _search_record(
    store: Store, table: StoredTable, around: Surroundings, record: ForgottenRecord
) -> _RecordSearch:
    condition, columns = _condition(store, table, record.key)
    files = search(store, table, condition, columns, around)
    rows = _count_rows(store, table, condition)
    if rows and not files.holding:
        raise _not_forgotten_error(
            f"{table.shape.table} shows the record, but it was found in none of its files."
        )
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
    return _RecordSearch(table, around, condition, columns, files, certificate)


def _not_forgotten_error(told: str) -> Failed:
    return Failed(
        "not-forgotten",
        told,
        "Stop every other program that writes to it, then run it again; if it fails again, report it.",
    )


def _related_tables(store: Store, table: StoredTable) -> list[TableName]:
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


def _forget_in_table(store: Store, sought: _RecordSearch, record: ForgottenRecord) -> Certificate:
    """The certificate of one table."""
    name, condition, columns = sought.table.shape.table, sought.condition, sought.columns
    if not sought.open:
        return sought.told

    def chosen(stored: StoredTable) -> Erasure | None:
        again = search(store, stored, condition, columns, sought.around)
        before = unfinished_erasure(stored)
        if not (again.holding or before.record):
            return None
        current = newest_snapshot(stored)
        tags = {each.name: current is None or each.snapshot_id != current.id for each in references(stored)}
        told = {
            each: text for each, text in carried_properties(stored, {}).items() if not record.occurs_in(text)
        }
        known = (record.show(each) for each in (*before.kept, *files_left_outside(stored)))
        mark = replace(before, kept=[*dict.fromkeys([*known, *outside_files(stored, record, again)])])
        if again.holding:
            mark = replace(mark, record=record.mark)
        return Erasure(again, told, tags, mark)

    consumers = [each.name.removeprefix(CURSOR) for each in references(sought.table)]
    done = erase(store, name, chosen, lambda rows: rows.where(~condition))
    left = existing(store, name)
    again = search(store, left, condition, columns, sought.around)
    shown = any(_count_rows(store, left, condition, each.id) for each in left.snapshots)
    if done is None or again.holding or shown or _count_rows(store, left, condition):
        raise _not_forgotten_error(
            f"{name} still has the record in {max(1, len(again.holding))} of its files."
        )
    told = remains(store, left, record, again, sought.around, done.left)
    if not (sought.found.holding or record.is_marked(unfinished_erasure(sought.table).record)):
        return replace(sought.told, left=told or 0)  # what was finished is the erasure of another record
    return _certify(sought, record, done, again, consumers, told)


def _certify(
    sought: _RecordSearch,
    record: ForgottenRecord,
    done: Erased,
    again: FoundFiles,
    consumers: list[str],
    left: list[str],
) -> Certificate:
    files = [f"a file that is not deleted: {record.show(each)}" for each in done.left]
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
        consumers=[record.show(each) for each in consumers],
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
    columns = columns_with_ids(store, table, wanted)
    condition = is_record(key, {each: columns[each].dataType for each in key})
    if MEMORY not in wanted:
        return condition, columns
    paths = {"$['" + name.replace("'", "\\'") + "']": str(value) for name, value in key.items()}
    scoped = (get_json_object(column(MEMORY)[SCOPE], path) == value for path, value in paths.items())
    return condition | coalesce(reduce(and_, scoped), lit(False)), columns


def _count_rows(
    store: Store, table: StoredTable, condition: "Column", snapshot: int | None = None
) -> dict[str, int]:
    """The record's rows by role, as Spark reads the table, or a snapshot of it."""
    from pyspark.sql.functions import coalesce, lit

    name = store.sql_name(table.shape.table)
    with translate_faults(table.shape.table):
        store.spark.catalog.refreshTable(name)
        native = table.shape.layout is Layout.VERSIONS
        role = coalesce(column(MEMORY)[ROLE], lit(VERSION)) if native else lit(_role_word(table.shape.layout))
        stored = table.shape.table
        rows = store.spark.table(name) if snapshot is None else rows_at(store, stored, snapshot)
        found = rows.where(condition).groupBy(role.alias("role")).count()
        return {row["role"]: row["count"] for row in found.collect()}


def _role_word(layout: Layout) -> str:
    return VERSION if layout.span else "row"
