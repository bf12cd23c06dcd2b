"""How the rows of a base or a history of a warehouse are hashed, as its table records it for `check`."""

from collections.abc import Mapping

from backstory.doors.historize.expressions import row_hash_of
from backstory.doors.historize.load import Load
from backstory.doors.historize.resolve import schema_of
from backstory.model.layout import Layout
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.store import Store, StoredTable
from backstory.stores.sql.row_hashes import ROW_HASHES, RowHash, hashes_of_property, hashes_to_keep


def hashes_to_record(
    store: Store, load: Load, table: StoredTable, base: StoredTable | None
) -> Mapping[str, str | None]:
    """What changes of the table's property when the load writes rows; `base` is as it was before the load.

    A table that had rows before it kept the property tells nothing, nor does a history of such a base: nobody
    knows how these rows were hashed. A history is copied from its base, and so tells all that the base tells.
    """
    if table.shape.layout not in {Layout.BASE, Layout.HIST}:
        return {}
    text, ids = _property_of(table), _ids(store, table)
    known = _hashes_of(table, ids)
    if known is None and (table.rows or text):
        return {}
    of_base = list[RowHash]()
    if table.shape.layout is Layout.HIST and base is not None and base.rows:
        told = _hashes_of(base, _ids(store, base))
        if told is None or not {each.name for hashed in told for each in hashed.columns} <= set(ids):
            return {} if text is None else {ROW_HASHES: None}
        of_base = told
    today = row_hash_of(schema_of(load.model, load.dataset), load.dataset)
    kept = hashes_to_keep([*(known or []), *of_base, today], ids)
    return {} if kept == text else {ROW_HASHES: kept}


def _hashes_of(table: StoredTable, ids: Mapping[str, int]) -> list[RowHash] | None:
    return hashes_of_property(_property_of(table), {id_: name for name, id_ in ids.items()})


def _property_of(table: StoredTable) -> str | None:
    """One property: all of them would be many calls of Java."""
    found: str | None = table.iceberg.properties().get(ROW_HASHES)
    return found


def _ids(store: Store, table: StoredTable) -> Mapping[str, int]:
    return {each["name"]: int(each["id"]) for each in fields_of(store.jvm, table.iceberg.schema())}
