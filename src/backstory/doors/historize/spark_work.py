"""One load of a dataset in a warehouse: its SQL as Spark's expressions, its commits, and its row hashes.

A table has a property that records how its rows are hashed, for `check`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import broadcast, expr

from backstory.doors.historize.hashes import row_hash_of
from backstory.doors.historize.load import Load
from backstory.doors.historize.model import ModelDataset
from backstory.doors.historize.resolve import schema_of
from backstory.doors.historize.runs import LoadRun, dataset_key
from backstory.engine.deliver import TableChange, deliver_once
from backstory.model.change import Change, Commit, Note
from backstory.model.instant import iso
from backstory.model.layout import Layout
from backstory.stores.iceberg.frames import frame_of
from backstory.stores.iceberg.literals import quote
from backstory.stores.iceberg.schema import fields_of
from backstory.stores.iceberg.store import IcebergStore, IcebergTable
from backstory.stores.sql.columns import instant_text
from backstory.stores.sql.dialect import Dialect
from backstory.stores.sql.row_hashes import ROW_HASHES, RowHash, hashes_of_property, hashes_to_keep
from backstory.stores.sql.statements import fill_placeholders


def hashes_to_record(
    store: IcebergStore, load: Load, table: IcebergTable, base: IcebergTable | None
) -> Mapping[str, str | None]:
    """The change of the property for row hashes when a load writes rows.

    `base` is the base before the load. A table that had rows before it had the property does not get one,
    because the hashes of these rows are unknown. The same is true for a history of such a base. A history
    copies rows of its base, and so records the base's hashes too.
    """
    if table.shape.layout not in {Layout.BASE, Layout.HIST}:
        return {}
    text, ids = _property_of(table), _ids(store, table)
    known = _hashes_of(table, ids)
    if known is None and (table.rows or text):
        return {}
    of_base = list[RowHash]()
    if table.shape.layout is Layout.HIST and base is not None and base.rows:
        recorded = _hashes_of(base, _ids(store, base))
        if recorded is None or not {column.name for hash_ in recorded for column in hash_.columns} <= set(
            ids
        ):
            return {} if text is None else {ROW_HASHES: None}
        of_base = recorded
    today = row_hash_of(schema_of(load.model, load.dataset), load.dataset)
    value = hashes_to_keep([*(known or []), *of_base, today], ids)
    return {} if value == text else {ROW_HASHES: value}


def _hashes_of(table: IcebergTable, ids: Mapping[str, int]) -> list[RowHash] | None:
    return hashes_of_property(_property_of(table), {id_: name for name, id_ in ids.items()})


def _property_of(table: IcebergTable) -> str | None:
    """The property for row hashes. To fetch all properties would take many calls of Java."""
    value: str | None = table.iceberg.properties().get(ROW_HASHES)
    return value


def _ids(store: IcebergStore, table: IcebergTable) -> Mapping[str, int]:
    return {field["name"]: int(field["id"]) for field in fields_of(store.jvm, table.iceberg.schema())}


DOOR = "historize"
# No column of a model has a space in its name.
PEPPER = "secret pepper"
RECEIPT, TIMESTAMP = "backstory.receipt", "backstory.load-timestamp"
# The snapshot of the base from which a history's commit was made.
BASE = "backstory.base"


def with_values(store: IcebergStore, rows: DataFrame, values: Mapping[str, str]) -> DataFrame:
    """The rows with these constant values as columns. The values appear in no plan."""
    one = frame_of(store, pa.table({name: [value] for name, value in values.items()}))
    return rows.crossJoin(broadcast(one))


def token_of(schema: str, dataset: ModelDataset, run_id: str) -> str:
    """The token in the commits of a run (decision H6)."""
    return f"{dataset_key(schema, dataset)} {run_id}"


@dataclass(frozen=True)
class SparkWork:
    """One load of one dataset in a warehouse. `base` is its base table before the load."""

    store: IcebergStore
    load: Load
    run: LoadRun
    pepper: str
    base: IcebergTable | None = None

    def sql(self, text: str) -> Column:
        """SQL of the dialect as a Spark expression.

        The pepper is a column, so that its value is in no plan.
        """
        return expr(self.fill_placeholders(text, self.load.dialect, quote(PEPPER)))

    def fill_placeholders(self, text: str, dialect: Dialect, pepper: str) -> str:
        """Replace the placeholders in SQL of a dialect by the values of this run.

        `pepper` is SQL for the secret.
        """
        values = {
            "load_timestamp": dialect.timestamp_literal(self.run.instant),
            "load_timestamp_text": dialect.string_literal(instant_text(self.run.instant)),
            "load_run_id": dialect.string_literal(self.run.run_id),
            "pepper": pepper,
        }
        if self.run.cutoff:
            values["DELTA_CUTOFF"] = dialect.timestamp_literal(self.run.cutoff)
        return fill_placeholders(text, values)

    def with_pepper(self, rows: DataFrame, alias: str) -> DataFrame:
        """The rows under an alias, with the pepper as a column."""
        return with_values(self.store, rows.alias(alias), self.secret)

    @property
    def secret(self) -> dict[str, str]:
        """The values for `with_values` that rows need for the keys of `sql`."""
        return {PEPPER: self.pepper}

    @property
    def token(self) -> str:
        """The token in the commits of this run."""
        return token_of(self.load.schema, self.load.dataset, self.run.run_id)

    def note(self, **more: str) -> Note:
        """The note for a commit of this run."""
        return Note(DOOR, self.token, {TIMESTAMP: iso(self.run.instant), **more})

    def commit(self, table: IcebergTable | None, change: Change | None, note: Note) -> Commit | None:
        """Commit a change of one of this load's tables, without retries, because the load itself retries.

        If there are new rows, the commit also records how they are hashed.
        """
        if table is not None and change is not None and change.added is not None:
            hashes = hashes_to_record(self.store, self.load, table, self.base)
            change = replace(change, properties={**change.properties, **hashes})
        return deliver_once(self.store, TableChange([], note, lambda: (table, change), self.run.dry_run))
