"""Which tables can forget a record; what cannot be done is told before anything is searched or written."""

from collections.abc import Collection
from typing import Final

from backstory.errors import Refused, UsageError, option
from backstory.model.cursor import TAG as CURSOR
from backstory.model.layout import HIST_SUFFIX, Layout
from backstory.model.table import TableName
from backstory.stores.iceberg.reachable import NamedFiles, named_files
from backstory.stores.iceberg.snapshots import newest, references
from backstory.stores.iceberg.store import Store, StoredTable, load
from backstory.upkeep.keeping import GC

PARQUET: Final = "PARQUET"
DANGLING: Final = "'remove-dangling-deletes', 'true'"
FORMAT, ENCRYPTED = "write.format.default", "encryption.key-id"


def refuse_unforgetting(store: Store, table: StoredTable) -> None:
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


def refuse_read(table: StoredTable, *, drop_cursors: bool) -> None:
    """Refused where somebody may still read what was: branches, tags, and cursors that are behind."""
    current = newest(table)
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


def refuse_unerasable(store: Store, table: StoredTable) -> NamedFiles:
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
