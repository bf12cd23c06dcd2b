"""A table's commits, for readers and the journal."""

from datetime import UTC, datetime, timedelta

from committing import commit, make

from backstory.model.change import Change, Note
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing

NAME = TableName("snapshots", "t")


def test_commits_have_their_time_and_their_note(store):
    """Commits are listed newest first, each with its instant and its writer's note, or None."""
    drop(store, NAME)
    make(store, Shape(NAME, (Column("v", ColumnType(Kind.LONG)),), (), Layout.FIVETRAN_LIVE))
    assert existing(store, NAME).newest is None
    assert list(existing(store, NAME).lineage) == existing(store, NAME).commits == []

    for token in ("one", "two"):
        commit(store, existing(store, NAME), Change(snapshot=True), Note("test", token))
    table = existing(store, NAME)

    assert [each.properties.get("backstory.token") for each in table.lineage] == ["two", "one"]
    assert [each.properties["backstory.token"] for each in table.commits] == [
        "one",
        "two",
    ]
    last = table.newest
    assert last.properties.get("of nobody") is None
    assert last.id == int(table.iceberg.currentSnapshot().snapshotId())
    assert abs(datetime.now(UTC) - last.committed_at) < timedelta(hours=1)
