"""What may still tell of a record where a table has its files, by name (native.md V89)."""

from collections.abc import Collection, Iterator
from typing import Final

from backstory.stores.iceberg.places import Surroundings, bare, places_of
from backstory.stores.iceberg.reachable import HIDING
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.searching import FoundFiles
from backstory.stores.iceberg.snapshots import references
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.iceberg.unfinished import is_location, left_outside, unfinished
from backstory.upkeep.certificate import Record

VECTORS: Final = "PUFFIN"
OUTSIDE: Final = "a file outside of the table's folder"


def remains(
    store: Store,
    table: StoredTable,
    record: Record,
    found: FoundFiles,
    around: Surroundings,
    kept: Collection[str] = (),
) -> list[str]:
    """What cannot be searched, is not the table's to delete, or is named after the key; empty for nothing.

    Files of `kept` are told elsewhere.
    """
    return [
        *_files(table, record, found, around, kept),
        *_names(store, table, record),
        *_positions(store, table, record, found),
        *_storage(table, found),
    ]


def outside(table: StoredTable, record: Record, found: FoundFiles) -> list[str]:
    """The files that hold the record and are not the table's to delete, by names that tell no key."""
    places = places_of(table.iceberg)
    return [record.named(each) for each in sorted(found.holding) if not places.owns(each)]


def _files(
    table: StoredTable, record: Record, found: FoundFiles, around: Surroundings, kept: Collection[str]
) -> Iterator[str]:
    places = places_of(table.iceberg)
    known = {name for each in kept for name in (bare(each), record.named(each))}
    elsewhere = {each for each in found.foreign if not places.owns(each)}
    for each in outside(table, record, found):
        yield f"{OUTSIDE}, which holds the record: {each}"
    for each in left_outside(table):
        if not is_location(each) and each not in known:
            yield f"{OUTSIDE}, which an earlier erasure left and which cannot be searched: {each}"
    for told, files in (
        (f"{OUTSIDE}, which holds the record", elsewhere),
        ("a file of unknown origin, which holds the record", found.foreign - elsewhere),
        ("a file of unknown origin, which cannot be searched", found.unread),
        ("files that no metadata names in a folder of other tables, too", around.shared),
    ):
        for each in sorted(files):
            if bare(each) not in known:
                yield f"{told}: {record.named(each)}"


def _names(store: Store, table: StoredTable, record: Record) -> Iterator[str]:
    if unfinished(table).record:
        yield "files of a record whose erasure was interrupted: the next erasure of any record deletes them"
    for name, value in table.properties.items():
        if record.stands_in(value) or record.stands_in(name):
            yield f"table property {record.named(name)}"
    for each in references(table):
        if record.stands_in(each.name):
            yield f"cursor {record.named(each.name)}"
    ids = {each["name"]: each["id"] for each in fields_of(store.jvm, table.iceberg.schema())}
    for schema in dict(table.iceberg.schemas()).values():
        for field in fields_of(store.jvm, schema):
            if field["name"] in record.key and field["id"] != ids.get(field["name"]):
                yield f"values of a column {field['name']} that was dropped, in data files"
                return


def _positions(store: Store, table: StoredTable, record: Record, found: FoundFiles) -> Iterator[str]:
    """Files of positions name the data files whose rows they hide, and folders may be named after the key."""
    hiding = (each for each in found.named.files.values() if each.kind in HIDING and not each.past)
    if not any(each.format != VECTORS for each in hiding):
        return
    live = {bare(each) for each in found.named.now.data}
    name = store.sql_name(table.shape.table, "position_deletes")
    for row in store.spark.table(name).select("file_path").distinct().collect():
        told = str(row["file_path"])
        if bare(told) not in live and record.named(told) != told:
            yield f"deletes by position in a file that no longer exists: {record.named(told)}"


def _storage(table: StoredTable, found: FoundFiles) -> Iterator[str]:
    place = str(table.iceberg.location())
    if found.listed is None:
        yield "files that no metadata names: the storage lists none"
    if "://" in place and not place.startswith("file:"):
        yield f"older versions of objects, where {place.partition('://')[0]} keeps them"
