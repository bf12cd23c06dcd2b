"""Forget a record: out of every version, snapshot, file and manifest (native.md V87 to V89)."""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from hashlib import sha256
from operator import and_
from typing import TYPE_CHECKING, Any, Final, Literal

from backstory.engine.upkeep import erase
from backstory.errors import Failed, Refused, UsageError
from backstory.model.cursor import TAG as CURSOR
from backstory.model.history import ARCHIVE_SUFFIX
from backstory.model.instant import iso
from backstory.model.layout import HIST_SUFFIX, MEMORY, Layout
from backstory.model.receipt import Receipt
from backstory.model.remembered import ROLE, SCOPE
from backstory.model.table import TableName
from backstory.reading.frames.records import is_record
from backstory.reading.keys import key_of
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.literals import column
from backstory.stores.iceberg.reachable import refuse_writers
from backstory.stores.iceberg.searching import FoundFiles, holding, with_ids
from backstory.stores.iceberg.snapshots import newest, references
from backstory.stores.iceberg.store import Store, StoredTable, existing, load
from backstory.stores.metadata.described import deletes_by_value
from backstory.upkeep.carried import carried

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


VERSION: Final = "version"
TELLING: Final = 4


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Receipt):
    """What was forgotten, without the key; or what would be, where it was not `applied`.

    Its `status` is no-record where no file holds the record: it never was there, or was forgotten before.
    `rows` are those of the newest snapshot by role, `left` is 0 or names what could not be looked at. `also`
    are the certificates of the tables that belong to this one.
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
    also: Sequence[Mapping[str, Any]] = ()
    sha256: str = ""

    def sealed(self) -> "Certificate":
        """The same with the digest of all that it says."""
        told = {name: value for name, value in self.to_dict().items() if name != "sha256"}
        text = json.dumps(told, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return replace(self, sha256=sha256(text.encode()).hexdigest())


def forget(
    store: Store, name: TableName, key: object, *, drop_cursors: bool = False, apply: bool = False
) -> Certificate:
    """Remove a record from every version, old snapshots and files included; without `apply` only look.

    Of a history the base and the archive forget it too. Raises UsageError for a table that cannot forget,
    Refused (`cursor-behind`, `foreign-reference`) while somebody may still read what was, TryAgain
    (`writer-at-work`) where files of a day or less are not named yet. A second time there is nothing, and no
    commit. No other program may write to the table meanwhile.
    """
    stored = existing(store, name)
    _refuse_unforgetting(store, stored)
    wanted = key_of(stored.shape, key)
    salt = secrets.token_hex(16)
    digest = sha256((salt + json.dumps([str(each) for each in wanted.values()])).encode()).hexdigest()
    names = [name, *_beside(store, stored)]
    for each in names:
        _refuse_read(existing(store, each), drop_cursors=drop_cursors)
    sought = [_sought(store, each, wanted, Certificate(str(each), digest, salt)) for each in names]
    for one in sought if apply else ():
        if one.found.holding:
            refuse_writers(one.table, one.found.listed or {}, one.found.holding, one.found.named)
    first, *others = (_forgotten(store, one, wanted) if apply else one.told for one in sought)
    return replace(first, also=[each.sealed().to_dict() for each in others]).sealed()


@dataclass(frozen=True, slots=True)
class _Sought:
    """A table, which of its rows are the record's, the files that hold them, and the certificate so far."""

    table: StoredTable
    condition: "Column"
    columns: "StructType"
    found: FoundFiles
    told: Certificate


def _sought(store: Store, name: TableName, key: Mapping[str, object], told: Certificate) -> _Sought:
    table = existing(store, name)
    condition, columns = _condition(store, table, key)
    found = holding(store, table, condition, columns)
    rows = _rows(store, table, condition)
    status: Literal["no-record", "planned"] = "planned" if found.holding else "no-record"
    told = replace(
        told, status=status, rows=rows, searched=found.searched, files_rewritten=len(found.holding)
    )
    return _Sought(table, condition, columns, found, told)


def _refuse_unforgetting(store: Store, table: StoredTable) -> None:
    """Event logs are chained by hashes of their rows; logs tell of runs; a base belongs to its history."""
    name, layout = table.shape.table, table.shape.layout
    history = TableName(name.schema, name.name + HIST_SUFFIX)
    if layout in {Layout.ODF, Layout.ODF_LOG, Layout.RUN_LOG}:
        raise UsageError(
            "append-only",
            f"{name} is a log: each commit is chained to the ones before by the hashes of its rows.",
            "Nothing was written; drop the dataset and add it again without the record.",
        )
    if layout is Layout.BASE and load(store, history) is not None:
        raise UsageError(
            "no-forget", f"{name} is the base of {history}.", f"Forget it in {history}: its base forgets too."
        )
    if not table.shape.key:
        raise UsageError("no-key", f"{name} has no key.", "Only a record with a key can be forgotten.")


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


def _refuse_read(table: StoredTable, *, drop_cursors: bool) -> None:
    current = newest(table)
    names = references(table)
    foreign = [each.name for each in names if not each.name.startswith(CURSOR)]
    behind = [each.name for each in names if current is None or each.snapshot_id != current.id]
    if foreign:
        raise Refused(
            "foreign-reference",
            f"{table.shape.table} has branches or tags of others, which keep what was.",
            "Nothing was written; drop them first.",
            foreign,
        )
    if behind and not drop_cursors:
        raise Refused(
            "cursor-behind",
            f"Consumers of {table.shape.table} have not read all that came.",
            "Nothing was written; let them read on, or say --drop-cursors.",
            [each.removeprefix(CURSOR) for each in behind],
        )


def _forgotten(store: Store, sought: _Sought, key: Mapping[str, object]) -> Certificate:
    """The certificate of one table."""
    name, condition, columns = sought.table.shape.table, sought.condition, sought.columns
    if not sought.found.holding:
        return sought.told

    def chosen(
        stored: StoredTable,
    ) -> tuple[Collection[str], Mapping[str, str], Mapping[str, bool]] | None:
        again = holding(store, stored, condition, columns)
        current = newest(stored)
        tags = {each.name: current is None or each.snapshot_id != current.id for each in references(stored)}
        told = {each: text for each, text in carried(stored, {}).items() if not _in(key, text)}
        return (again.holding, told, tags) if again.holding else None

    done = erase(store, name, chosen, lambda rows: rows.where(~condition))
    left = holding(store, existing(store, name), condition, columns)
    if done is None or left.holding:
        raise Failed(
            "not-forgotten",
            f"{name} holds the record in {len(left.holding)} files still: another program writes to it.",
            "Stop it, then forget once more.",
        )
    return replace(
        sought.told,
        status="forgotten",
        applied=True,
        forgotten_at=iso(datetime.now(UTC)),
        files_rewritten=done.rewritten,
        files_deleted=done.data,
        snapshots_expired=done.snapshots,
        metadata_deleted=done.metadata,
        statistics_deleted=done.statistics,
        searched=left.searched,
        left=_left(existing(store, name), key, left),
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


def _rows(store: Store, table: StoredTable, condition: "Column") -> dict[str, int]:
    from pyspark.sql.functions import coalesce, lit

    with translate_faults(table.shape.table):
        rows = store.spark.table(store.sql_name(table.shape.table)).where(condition)
        native = table.shape.layout is Layout.VERSIONS
        role = coalesce(column(MEMORY)[ROLE], lit(VERSION)) if native else lit(_word(table.shape.layout))
        return {row["role"]: row["count"] for row in rows.groupBy(role.alias("role")).count().collect()}


def _word(layout: Layout) -> str:
    return VERSION if layout.span else "row"


def _in(key: Mapping[str, object], text: str) -> bool:
    """Whether a text has a value of the key; one of a few letters stands in texts by chance."""
    values = [str(each) for each in key.values()]
    return any(len(each) >= TELLING and each in text for each in values)


def _left(table: StoredTable, key: Mapping[str, object], found: FoundFiles) -> int | list[str]:
    """What may still tell of the record, by name; 0 for nothing."""
    place = str(table.iceberg.location())
    told = [f"table property {name}" for name, value in table.properties.items() if _in(key, value)]
    told += [f"cursor {each.name}" for each in references(table) if _in(key, each.name)]
    current = newest(table)
    if current is not None and deletes_by_value(current.told):
        told.append("equality deletes of another program, which may name the key")
    if found.listed is None:
        told.append("files that no metadata names: the storage lists none")
    if "://" in place and not place.startswith("file:"):
        told.append(f"older versions of objects, where {place.partition('://')[0]} keeps them")
    return told or 0
