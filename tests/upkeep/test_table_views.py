"""Views of a table in its catalog return the rows of `current` and `as_of`, in every session."""

import pytest
from committing import append_past, make
from datasets import Dataset
from remembering import E14, day, lives, remembered
from tables_as_text import table

from backstory.errors import Refused, UsageError
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.reading.frames import table_in_session
from backstory.stores.iceberg.create import create_view, drop
from backstory.table import Table
from backstory.upkeep.table_views import OF


def lives_in(store, sql, **times):
    return lives(store.spark.sql(sql, args=times or None).toArrow().to_pylist())


def test_views_show_current_and_past_native_versions(store):
    """Views contain no memory rows, can be recreated, and need only names in another session."""
    history = remembered(store, "viewed", E14)
    tried = history.views(dry_run=True)
    assert [(each["view"], each["made"]) for each in tried] == [
        ("reading.viewed_current", False),
        ("reading.viewed_versions", False),
        (None, False),
    ]
    assert store.spark.sql("SHOW VIEWS IN backstory.reading LIKE 'viewed*'").count() == 0
    made = [each["made"] for each in history.views() for _ in history.views()[:1]]
    assert made == [True, True, False]
    fresh = Table(type(store)(store.spark.newSession()), history.name)
    assert lives_in(fresh.store, "SELECT * FROM backstory.reading.viewed_current") == ["k: b[20,)"]
    assert lives_in(fresh.store, "SELECT * FROM backstory.reading.viewed_versions") == ["k: a[10,20) b[20,)"]
    query = tried[2]["sql"]
    assert [lives_in(fresh.store, query, time=day(number)) for number in (5, 19, 20)] == [
        [],
        ["k: a[10,20)"],
        ["k: b[20,)"],
    ]


def test_views_of_fivetran_histories_equal_the_readers_rows(store):
    """Overlaps, missing flags and gaps of a millisecond are read as by `as_of`."""
    name = TableName("reading", "seen")
    drop(store, name)
    ends = (
        ("_fivetran_start", Kind.UTC_DATETIME),
        ("_fivetran_end", Kind.UTC_DATETIME),
        ("_fivetran_active", Kind.BOOLEAN),
    )
    columns = tuple(
        Column(each, ColumnType(kind)) for each, kind in (("k", Kind.STRING), ("v", Kind.STRING), *ends)
    )
    make(store, Shape(name, columns, ("k",), Layout.FIVETRAN_HISTORY))
    text = "k v start end active\n a a T1 T3-1 false\n a b T3 TMAX true\n b c T1 TMAX true\n b d T2 - true\n c e T1 T2 -"
    append_past(store, name, [tuple(row.values()) for row in table(text)])
    history = Table(store, name)
    history.views()
    for view, frame in (
        ("current", history.current()),
        ("versions", table_in_session(store, name).versions()),
    ):
        seen = lives_in(store, f"SELECT * FROM backstory.reading.seen_{view}")
        assert seen == lives(frame.toArrow().to_pylist())
    assert len(seen) == 3


def test_a_view_never_replaces_another_table_or_view(spark, store, tmp_path):
    history = remembered(store, "crowded", E14)
    taken = "backstory.reading.crowded_current"
    spark.sql(f"CREATE OR REPLACE VIEW {taken} AS SELECT 1 AS mine")
    with pytest.raises(Refused, match="another table or view reading.crowded_current"):  # noqa: RUF043
        history.views()
    assert spark.table(taken).columns == ["mine"]
    columns = [Column("mine", ColumnType(Kind.INT)), Column("more", ColumnType(Kind.INT))]
    create_view(
        store, TableName("reading", "crowded_current"), columns, "SELECT 2, 3", {OF: str(history.name)}
    )
    with pytest.raises(Refused):
        create_view(store, history.name, columns, "SELECT 2, 3", {OF: str(history.name)})
    assert spark.table(taken).columns == ["mine"]
    spark.sql(f"DROP VIEW {taken}")
    log = Dataset(store, tmp_path, "{kind: Snapshot, primaryKey: [city]}", columns="city STRING, n INT")
    log.push("A,1")
    with pytest.raises(UsageError, match="log of events"):
        Table(store, log.table.shape.table).views()
