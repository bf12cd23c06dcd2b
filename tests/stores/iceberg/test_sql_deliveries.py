"""A published delivery by SQL with pending properties: every reader and writer uses them."""

import pytest
from committing import commit, make

from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.branches import DELIVERY
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.jvm import json_of_metadata
from backstory.stores.iceberg.store import existing, references
from backstory.stores.metadata.table_metadata import table_of_metadata
from backstory.upkeep.previews import open_branch, publish

NAME, NOTE = TableName("sql_deliveries", "t"), Note("native", "token")
SHAPE = Shape(NAME, (Column("v", ColumnType(Kind.LONG)),), (), Layout.FIVETRAN_LIVE)


@pytest.fixture
def table(store):
    """A table with one commit and the properties `old` and `gone`."""
    drop(store, NAME)
    make(store, SHAPE)
    commit(store, existing(store, NAME), Change(properties={"old": "1", "gone": "1"}, snapshot=True), NOTE)
    return existing(store, NAME)


def deliver_by_sql(store, name="a", **properties):
    """A delivery's branch with a commit and these pending properties, as SQL makes it."""
    branch = open_branch(store, NAME, DELIVERY + name)
    commit(branch, existing(branch, NAME), Change(properties=properties, snapshot=True), NOTE)


def publish_by_sql(store, name="a", **properties):
    """The same delivery after its publication, but before its properties."""
    deliver_by_sql(store, name, **properties)
    name = f"{DELIVERY}{name}"
    store.spark.sql(
        f"CALL {store.catalog}.system.fast_forward('{NAME.schema}.{NAME.name}', 'main', '{name}')"
    )


def properties(table):
    return {name: table.properties.get(name) for name in ("old", "new", "gone")}


NOW = {"old": "2", "new": "3", "gone": None}


def test_properties_apply_from_the_publication_on(store, table):
    """This holds for Java's readers and readers of metadata, but not before the publication."""
    deliver_by_sql(store, **NOW)
    assert properties(existing(store, NAME)) == {"old": "1", "new": None, "gone": "1"}
    assert references(existing(store, NAME)) != []  # it may still be published
    drop(store, NAME)


WIDER = Shape(
    NAME, (Column("v", ColumnType(Kind.LONG)), Column("w", ColumnType(Kind.LONG))), (), SHAPE.layout
)
CHANGES = {
    "properties": Change(properties={"new": "4"}),
    "rows": Change(properties={"new": "4"}, snapshot=True),
    "shape": Change(properties={"new": "4"}, into=WIDER),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_next_commit_completes_the_delivery(store, table, change):
    """Its own properties are newer, the branch is dropped, and the properties can be changed again."""
    publish_by_sql(store, **NOW)
    metadata = json_of_metadata(store.jvm, existing(store, NAME).base.operations().current())
    assert properties(existing(store, NAME)) == properties(table_of_metadata(NAME, metadata, "")) == NOW
    assert references(existing(store, NAME)) == []
    commit(store, existing(store, NAME), change, NOTE)
    done = existing(store, NAME)
    assert properties(done) == {**NOW, "new": "4"}
    assert (done.pending, done.finished, references(done)) == ({}, [], [])
    commit(store, done, Change(properties={"old": "5"}), NOTE)
    assert properties(existing(store, NAME)) == {**NOW, "new": "4", "old": "5"}


def test_properties_still_apply_after_a_commit_of_another_program(store, table):
    publish_by_sql(store, **NOW)
    store.spark.sql(f"INSERT INTO {store.sql_name(NAME)} VALUES (1)")
    assert properties(existing(store, NAME)) == NOW


def test_an_unpublishable_delivery_changes_nothing(store, table):
    """If the table has newer commits, the next commit drops the branch."""
    deliver_by_sql(store, **NOW)
    store.spark.sql(f"INSERT INTO {store.sql_name(NAME)} VALUES (1)")
    left = existing(store, NAME)
    assert properties(left) == {"old": "1", "new": None, "gone": "1"}
    assert (left.pending, list(left.finished)) == ({}, [f"{DELIVERY}a"])
    commit(store, left, Change(snapshot=True), NOTE)
    assert dict(existing(store, NAME).iceberg.refs()).keys() == {"main"}


def test_a_preview_starts_with_the_pending_properties(store, table):
    """Once published, the preview has them too. A later preview begins with the table's own properties."""
    publish_by_sql(store, **NOW)
    preview = open_branch(store, NAME, "preview")
    assert properties(existing(preview, NAME)) == NOW
    commit(preview, existing(preview, NAME), Change(properties={"new": "4"}, snapshot=True), NOTE)
    assert properties(existing(preview, NAME)) == {**NOW, "new": "4"}
    publish(store, NAME, "preview")
    assert properties(existing(store, NAME)) == {**NOW, "new": "4"}
    commit(store, existing(store, NAME), Change(properties={"new": "5"}), NOTE)
    preview = open_branch(store, NAME, "preview")
    assert properties(existing(preview, NAME)) == {**NOW, "new": "5"}
