"""Forget a record: remove it from every version, snapshot, file and manifest (native.md V87 to V89).

A table that does not support erasures is refused before anything is searched or written. The certificate
lists everything that may still contain the record. It never contains the key or a path with the key.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from hashlib import sha256
from operator import and_
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, unquote

from pyspark.sql import Column
from pyspark.sql.functions import coalesce, get_json_object, lit
from pyspark.sql.types import StructType

from backstory.engine.upkeep import erase
from backstory.errors import Failed, Refused, UsageError, option
from backstory.model.change import CURSOR_TAG as CURSOR
from backstory.model.instant import iso
from backstory.model.layout import HIST_SUFFIX, MEMORY, Layout
from backstory.model.receipt import Receipt
from backstory.model.table import ARCHIVE_SUFFIX, TableName
from backstory.model.versions_layout import ROLE, SCOPE
from backstory.reading.frames import is_record
from backstory.reading.options import key_of
from backstory.spark.connect import needs_java
from backstory.spark.versions import try_cast
from backstory.stores.iceberg import erasures, storage
from backstory.stores.iceberg.erasures import Erasure, FoundFiles
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.frames import rows_at
from backstory.stores.iceberg.literals import column, literal
from backstory.stores.iceberg.storage import HIDING, NamedFiles, SharedFolders
from backstory.stores.iceberg.store import (
    IcebergStore,
    IcebergTable,
    existing,
    load,
    references,
)
from backstory.upkeep.maintaining import GC, carried_properties

VERSION: Final = "version"
VECTORS: Final = "PUFFIN"
OUTSIDE: Final = "a file outside of the table's folder"
PARQUET: Final = "PARQUET"
DANGLING: Final = "'remove-dangling-deletes', 'true'"
FORMAT, ENCRYPTED = "write.format.default", "encryption.key-id"


# Shorter values of keys occur in strings by chance.
SHORTEST_VALUE: Final = 4


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Receipt):
    """The result of an erasure, or its plan if `applied` is false.

    The certificate does not contain the key. `status` is no-record if no file contains the record, because
    the record never existed or was erased before. `rows` has the numbers of the record's rows in the newest
    snapshot, by role. `left` is 0, or lists everything that could not be searched or deleted. The `path` of a
    file is the SHA-256 of the salt and its location, because folders and files may be named after the key.
    `consumers` are the cursors that have read the record. The consumers' copies still contain it. `also` has
    the certificates of the tables that belong to this one.
    """

    table: str
    key_digest: str
    salt: str
    forgotten_at: str | None = None
    status: Literal["no-record", "planned", "forgotten"] = "no-record"
    applied: bool = False
    rows: Mapping[str, int] = field(default_factory=dict)
    files_rewritten: int = 0
    files_deleted: Sequence[Mapping[str, Any]] = ()
    snapshots_expired: Sequence[int] = ()
    metadata_deleted: Sequence[Mapping[str, Any]] = ()
    statistics_deleted: Sequence[Mapping[str, Any]] = ()
    searched: Mapping[str, int] = field(default_factory=dict)
    left: int | Sequence[str] = 0
    consumers: Sequence[str] = ()
    also: Sequence[Mapping[str, Any]] = ()
    sha256: str = ""

    def seal(self) -> "Certificate":
        """The certificate with the digest of all its other fields."""
        fields = {name: value for name, value in self.to_dict().items() if name != "sha256"}
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return replace(self, sha256=sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class ForgottenRecord:
    """The key of a record, and a salt. The certificate contains only the salted digest of the key.

    `folders` are the partition names of layouts, which never contain a key.
    """

    key: Mapping[str, object]
    folders: Collection[str] = ()
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def digest(self) -> str:
        """The salted digest of the key."""
        return self.digest_of(json.dumps([str(value) for value in self.key.values()]))

    def digest_of(self, text: str) -> str:
        """The salted digest of a string."""
        return sha256((self.salt + text).encode()).hexdigest()

    @property
    def mark(self) -> str:
        """The mark that is in a table's properties until the erasure is finished."""
        return f"{self.salt} {self.digest}"

    def is_marked(self, mark: str) -> bool:
        """Whether a mark belongs to this record."""
        salt, _, digest = mark.partition(" ")
        return bool(mark) and replace(self, salt=salt).digest == digest

    def occurs_in(self, text: str) -> bool:
        """Whether a string contains a value of the key that is too long to occur by chance."""
        return any(len(value) >= SHORTEST_VALUE and value in text for value in map(str, self.key.values()))

    def show(self, text: str) -> str:
        """A name or location in a form that may be shown.

        If the name may contain the key, its digest is shown instead. This includes the folders of a user's
        own partitions, which may contain the key in another spelling.
        """
        spelt = {how(str(value)) for value in self.key.values() for how in (str, quote, quote_plus)}
        texts = (text.casefold(), unquote(text).casefold())
        words = {word for spelling in texts for word in re.split(r"[^\w.+-]+|\.(?=[a-z]+$)", spelling)}
        long = {spelling.casefold() for spelling in spelt if len(spelling) >= SHORTEST_VALUE}
        own = "|".join(map(re.escape, self.folders))
        foreign = re.sub(rf"(?<=/)(?:{own})=[^/=]*(?=/)", "", text) if own else text
        may_contain_key = "=" in foreign or bool({spelling.casefold() for spelling in spelt} & words)
        may_contain_key = may_contain_key or any(spelling in whole for spelling in long for whole in texts)
        return f"(SHA-256 with the salt {self.salt}) {self.digest_of(text)}" if may_contain_key else text

    def without_paths(self, files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The deleted files, with the digests of their locations."""
        return [{**file, "path": self.digest_of(str(file["path"]))} for file in files]


def refuse_other_layouts(store: IcebergStore, table: IcebergTable) -> None:
    """Raise UsageError for logs, for tables without a key, and for the base of a history.

    Hashes chain the rows of an event log, and a base is erased together with its history.
    """
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


def refuse_readers(table: IcebergTable, *, drop_cursors: bool) -> None:
    """Raise Refused if old rows may still be read: by branches, tags, or cursors that are behind."""
    current = table.newest
    current_references = references(table)
    foreign = [reference.name for reference in current_references if not reference.name.startswith(CURSOR)]
    behind = [
        reference.name
        for reference in current_references
        if current is None or reference.snapshot_id != current.id
    ]
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
            [name.removeprefix(CURSOR) for name in behind],
        )


def refuse_other_files(store: IcebergStore, table: IcebergTable) -> NamedFiles:
    """The files that the table names. Raises Refused if a file cannot be searched or may not be deleted."""
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
    named_by_table = storage.named_files(store, table)
    rows = [named_by_table.files[location] for location in sorted(named_by_table.now.all)]
    if ENCRYPTED in properties or any(row.secret for row in rows):
        raise Refused(
            "encrypted-table",
            f"{name} has encrypted files, which cannot be searched.",
            "Nothing was written; delete the record with the program that encrypts them, and let the "
            "earlier snapshots expire.",
        )
    formats = {row.format for row in rows if row.kind == "DATA"} - {PARQUET}
    if formats:
        raise _other_format(sql, name, formats)
    if any(row.kind == "EQUALITY_DELETES" for row in rows):
        raise Refused(
            "equality-deletes",
            f"Another program deleted rows of {name} by their values, which may contain the key.",
            f"Nothing was written; {_rewrite_remedy(sql, DANGLING)}.",
        )
    return named_by_table


def _other_format(sql: str, name: TableName, formats: Collection[str]) -> Refused:
    return Refused(
        "other-format",
        f"{name} has data files of {', '.join(sorted(formats))}; records can be erased from Parquet "
        "files only.",
        f"Nothing was written; ALTER TABLE {sql} SET TBLPROPERTIES ('{FORMAT}' = 'parquet'), then "
        f"{_rewrite_remedy(sql)}.",
    )


def _rewrite_remedy(sql: str, *more: str) -> str:
    """The remedy to rewrite a table's files with these options of Iceberg's procedure."""
    catalog, _, table = sql.partition(".")
    options = ", ".join(["'rewrite-all', 'true'", *more])
    return (
        f"rewrite its files (CALL {catalog}.system.rewrite_data_files(table => '{table}', "
        f"options => map({options}))), and expire the earlier snapshots (expire_snapshots)"
    )


@dataclass(frozen=True, slots=True)
class RecordSearch:
    """A record in one state of a table: the condition for its rows, with its columns, and the files."""

    store: IcebergStore
    table: IcebergTable
    record: ForgottenRecord
    around: SharedFolders
    condition: Column
    columns: StructType
    files: FoundFiles

    @property
    def open(self) -> bool:
        """Whether something must be done: files contain the record, or an erasure was interrupted."""
        return bool(self.files.holding or erasures.unfinished_erasure(self.table).record)

    def repeat(self, table: IcebergTable) -> "RecordSearch":
        """The search in another state of the table."""
        files = erasures.search(self.store, table, self.condition, self.columns, self.around)
        return replace(self, table=table, files=files)

    def count_rows(self, snapshot: int | None = None) -> dict[str, int]:
        """The number of the record's rows by role, as Spark reads the table or one of its snapshots."""
        stored, layout = self.table.shape.table, self.table.shape.layout
        name = self.store.sql_name(stored)
        with translate_faults(stored):
            self.store.spark.catalog.refreshTable(name)
            word = lit(VERSION if layout.span else "row")
            role = coalesce(column(MEMORY)[ROLE], word) if layout is Layout.VERSIONS else word
            rows = self.store.spark.table(name) if snapshot is None else rows_at(self.store, stored, snapshot)
            counts = rows.where(self.condition).groupBy(role.alias("role")).count()
            return {row["role"]: row["count"] for row in counts.collect()}

    def remains(self, reported: Collection[str] = ()) -> list[str]:
        """A line for each item that cannot be searched, cannot be deleted, or is named after the key.

        Files in `reported` are listed elsewhere.
        """
        return [
            *self._remaining_files(reported),
            *self._remaining_names(),
            *self._remaining_positions(),
            *self._storage_limits(),
        ]

    def outside_files(self) -> list[str]:
        """The files that contain the record but do not belong to the table, in a form that may be shown."""
        places = storage.places_of(self.table)
        return [self.record.show(path) for path in sorted(self.files.holding) if not places.owns(path)]

    def _remaining_files(self, reported: Collection[str]) -> Iterator[str]:
        places = storage.places_of(self.table)
        known = {name for file in reported for name in (storage.bare_location(file), self.record.show(file))}
        elsewhere = {path for path in self.files.foreign if not places.owns(path)}
        for shown in self.outside_files():
            yield f"{OUTSIDE}, which holds the record: {shown}"
        for shown in erasures.files_left_outside(self.table):
            if not erasures.is_location(shown) and shown not in known:
                yield f"{OUTSIDE}, which an earlier erasure left and which cannot be searched: {shown}"
        for description, files in (
            (f"{OUTSIDE}, which holds the record", elsewhere),
            ("a file of unknown origin, which holds the record", self.files.foreign - elsewhere),
            ("a file of unknown origin, which cannot be searched", self.files.unread),
            ("files that no metadata names, in a folder shared with other tables", self.around.shared),
        ):
            for path in sorted(files):
                if storage.bare_location(path) not in known:
                    yield f"{description}: {self.record.show(path)}"

    def _remaining_names(self) -> Iterator[str]:
        if erasures.unfinished_erasure(self.table).record:
            interrupted = "files of a record whose erasure was interrupted"
            yield f"{interrupted}: the next erasure of any record deletes them"
        for name, value in self.table.properties.items():
            if self.record.occurs_in(value) or self.record.occurs_in(name):
                yield f"table property {self.record.show(name)}"
        for reference in references(self.table):
            if self.record.occurs_in(reference.name):
                yield f"cursor {self.record.show(reference.name)}"
        ids = {each["name"]: each["id"] for each in self.table.fields}
        for schema in self.table.metadata["schemas"]:
            for each in schema["fields"]:
                if each["name"] in self.record.key and each["id"] != ids.get(each["name"]):
                    yield f"values of a column {each['name']} that was dropped, in data files"
                    return

    def _remaining_positions(self) -> Iterator[str]:
        """Lines about position deletes, which contain paths of data files that may be named after the key."""
        hiding = (file for file in self.files.named.files.values() if file.kind in HIDING and not file.past)
        if not any(file.format != VECTORS for file in hiding):
            return
        live = {storage.bare_location(location) for location in self.files.named.now.data}
        name = self.store.sql_name(self.table.shape.table, "position_deletes")
        for row in self.store.spark.table(name).select("file_path").distinct().collect():
            path = str(row["file_path"])
            if storage.bare_location(path) not in live and self.record.show(path) != path:
                yield f"deletes by position in a file that no longer exists: {self.record.show(path)}"

    def _storage_limits(self) -> Iterator[str]:
        place = self.table.metadata["location"]
        if self.files.listed is None:
            yield "files that no metadata names: the storage cannot list files"
        if "://" in place and not place.startswith("file:"):
            yield f"older versions of objects, where {place.partition('://')[0]} keeps them"


def forget(
    store: IcebergStore, name: TableName, key: object, *, drop_cursors: bool = False, apply: bool = False
) -> Certificate:
    """Remove a record from every version, including old snapshots and files.

    The record is also removed from the base and the archive of a history. Unless `apply` is true, it is only
    searched for. A second call makes no commit, unless it completes an interrupted erasure. No other program
    may write to the table in the meantime.

    Raises UsageError if the table does not support erasures. Raises Refused while old rows may still be read
    (`cursor-behind`, `foreign-reference`). Raises Refused if files cannot be searched (`other-format`,
    `equality-deletes`, `encrypted-table`) or may belong to another table (`shared-folder`, `gc-disabled`).
    Raises TryAgain if files of the last day are in no metadata (`writer-at-work`). Raises Failed if the
    record still exists afterwards (`not-forgotten`).
    """
    if not store.has_java:
        raise needs_java("The erasure of a record", f"forget {name} KEY")
    stored = existing(store, name)
    refuse_other_layouts(store, stored)
    tables = [stored, *(existing(store, related) for related in _related_tables(store, stored))]
    folders = frozenset(name for table in tables for name in table.shape.layout.folders)
    record = ForgottenRecord(key_of(stored.shape, key), folders)
    for table in tables:
        refuse_readers(table, drop_cursors=drop_cursors)
    files_by_table = [refuse_other_files(store, table) for table in tables]
    places_around = [
        storage.shared_folders(store, table, files.now.all)
        for table, files in zip(tables, files_by_table, strict=True)
    ]
    searches = [_search_record(store, *pair, record) for pair in zip(tables, places_around, strict=True)]
    certificates = [_plan_certificate(search) for search in searches]
    if apply:
        for search in searches:
            if search.open:
                erasures.refuse_unfinished(search.table, search.files)
        certificates = list(map(_forget_in_table, searches, certificates))
    first, *others = certificates
    return replace(first, also=[certificate.seal().to_dict() for certificate in others]).seal()


def _search_record(
    store: IcebergStore, table: IcebergTable, around: SharedFolders, record: ForgottenRecord
) -> RecordSearch:
    """The search for a record in the current state of a table."""
    condition, columns = _condition(store, table, record.key)
    files = erasures.search(store, table, condition, columns, around)
    return RecordSearch(store, table, record, around, condition, columns, files)


def _plan_certificate(search: RecordSearch) -> Certificate:
    """The certificate before the erasure. Raises Failed if a row of the record is in no file."""
    files, rows, name = search.files, search.count_rows(), search.table.shape.table
    if rows and not files.holding:
        raise _not_forgotten_error(f"{name} shows the record, but none of its files contains it.")
    return Certificate(
        str(name),
        search.record.digest,
        search.record.salt,
        status="planned" if files.holding else "no-record",
        rows=rows,
        searched=files.searched,
        files_rewritten=len(files.holding),
        left=search.remains() or 0,
    )


def _not_forgotten_error(message: str) -> Failed:
    return Failed(
        "not-forgotten",
        message,
        "Stop every other program that writes to it, then run it again; if it fails again, report it.",
    )


def _related_tables(store: IcebergStore, table: IcebergTable) -> list[TableName]:
    """The base and the archive of a history."""
    name = table.shape.table
    if table.shape.layout is not Layout.HIST:
        return []
    names = (name.name.removesuffix(HIST_SUFFIX), name.name + ARCHIVE_SUFFIX)
    return [
        related
        for related in (TableName(name.schema, other) for other in names)
        if related != name
        and (stored := load(store, related))
        and set(table.shape.key) <= set(stored.shape.names)
    ]


def _forget_in_table(search: RecordSearch, planned: Certificate) -> Certificate:
    """Erase the record from one table, and return the certificate."""
    name, record = search.table.shape.table, search.record
    if not search.open:
        return planned

    def plan_erasure(stored: IcebergTable) -> Erasure | None:
        again, before = search.repeat(stored), erasures.unfinished_erasure(stored)
        if not again.open:
            return None
        current = stored.newest
        tags = {
            reference.name: current is None or reference.snapshot_id != current.id
            for reference in references(stored)
        }
        properties = {
            key: text for key, text in carried_properties(stored).items() if not record.occurs_in(text)
        }
        known = (record.show(file) for file in (*before.kept, *erasures.files_left_outside(stored)))
        mark = replace(before, kept=[*dict.fromkeys([*known, *again.outside_files()])])
        if again.files.holding:
            mark = replace(mark, record=record.mark)
        return Erasure(again.files, properties, tags, mark)

    done = erase(search.store, name, plan_erasure, lambda rows: rows.where(~search.condition))
    after = search.repeat(existing(search.store, name))
    commits = [one["snapshot-id"] for one in after.table.metadata.get("snapshots") or ()]
    if done is None or after.files.holding or any(map(after.count_rows, [*commits, None])):
        raise _not_forgotten_error(
            f"{name} still has the record in {max(1, len(after.files.holding))} of its files."
        )
    left_over = after.remains(done.left)
    if not (search.files.holding or record.is_marked(erasures.unfinished_erasure(search.table).record)):
        # The erasure of another record was completed.
        return replace(planned, left=left_over or 0)
    consumers = [reference.name.removeprefix(CURSOR) for reference in references(search.table)]
    files = [f"a file that is not deleted: {record.show(path)}" for path in done.left]
    return replace(
        planned,
        status="forgotten",
        applied=True,
        forgotten_at=iso(datetime.now(UTC)),
        files_rewritten=done.rewritten,
        files_deleted=record.without_paths(done.data),
        snapshots_expired=done.snapshots,
        metadata_deleted=record.without_paths(done.metadata),
        statistics_deleted=record.without_paths(done.statistics),
        searched=after.files.searched,
        consumers=[record.show(consumer) for consumer in consumers],
        left=[*files, *left_over] or 0,
    )


def _condition(
    store: IcebergStore, table: IcebergTable, key: Mapping[str, object]
) -> tuple[Column, StructType]:
    """A condition for the rows of the record, and the columns that the condition reads.

    The mark of a copy also contains the record's key if the copy's scope was this record.
    """
    wanted: dict[str, tuple[str, ...]] = dict.fromkeys(key, ())
    if table.shape.layout is Layout.VERSIONS:
        wanted[MEMORY] = (SCOPE,)
    columns = erasures.columns_with_ids(store, table, wanted)
    types = {name: columns[name].dataType for name in key}
    condition = is_record(key, types)
    if MEMORY not in wanted:
        return condition, columns
    paths = {name: "$['" + name.replace("'", "\\'") + "']" for name in key}
    scoped = (
        try_cast(get_json_object(column(MEMORY)[SCOPE], paths[name]), type_.simpleString())
        == literal(key[name]).cast(type_)
        for name, type_ in types.items()
    )
    return condition | coalesce(reduce(and_, scoped), lit(False)), columns
