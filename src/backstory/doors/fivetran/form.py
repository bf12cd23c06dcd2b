"""The setup form and its tests (sections 2.1 and 2.2, decision F13)."""

import uuid
from collections.abc import Sequence

import pyarrow as pa

from backstory.doors.fivetran.targets import CATALOG_FIELD, PREFIX_FIELD, NamedStore, note
from backstory.doors.fivetran.wire import common_pb2 as common
from backstory.engine.deliver import TableChange, deliver
from backstory.errors import Failed, UsageError
from backstory.model.change import Change
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.tables import existing, load, read_slice, tables

CONNECTION, WRITE = "connection", "write"


def form(catalogs: Sequence[str]) -> common.ConfigurationFormResponse:
    """The fields of the form, a catalog and a schema prefix, and its tests."""
    response = common.ConfigurationFormResponse(
        schema_selection_supported=True, table_selection_supported=True
    )
    catalog = response.fields.add(
        name=CATALOG_FIELD,
        label="Catalog",
        description="The Iceberg catalog that the tables are written to.",
        required=True,
        default_value=catalogs[0],
    )
    catalog.dropdown_field.dropdown_field.extend(catalogs)
    response.fields.add(
        name=PREFIX_FIELD,
        label="Schema prefix",
        description="Put before the name of every schema. May be empty.",
        required=False,
        text_field=common.TextField.PlainText,
    )
    response.tests.add(name=CONNECTION, label="The catalog answers")
    response.tests.add(name=WRITE, label="Tables can be created, written, read and dropped")
    return response


def run_test(name: str, target: NamedStore) -> None:
    """Run one test of the form. Raises the error of a failed test, and UsageError for an unknown test."""
    if name == CONNECTION:
        tables(target.store, target.schema("backstory_test"))  # the list of all schemas could be long
    elif name == WRITE:
        _try_writing(target)
    else:
        raise UsageError("no-test", f"There is no test {name!r}.", f"Run {CONNECTION} or {WRITE}.")


def _try_writing(target: NamedStore) -> None:
    """Create a table, write a row, read it, and drop the table."""
    store = target.store
    name = TableName(target.schema("backstory_test"), f"test_{uuid.uuid4().hex[:8]}")
    key = Column("id", ColumnType(Kind.LONG))
    shape = Shape(name, (key,), ("id",), Layout.FIVETRAN_LIVE)
    deliver(store, TableChange([name], note("test"), lambda: (None, Change(into=shape))))
    try:
        rows = pa.table({"id": pa.array([1], pa.int64())})
        added = Change({"inserted": 1}, added=rows)
        deliver(store, TableChange([name], note("test"), lambda: (existing(store, name), added)))
        if read_slice(store, existing(store, name), rows).num_rows != 1:
            raise Failed(
                "lost-row",
                f"The row that was written to {name} could not be read back.",
                "Check that the server can read and write the catalog's storage.",
            )
    finally:
        deliver(store, TableChange([name], note("test"), lambda: (load(store, name), Change(dropped=True))))
