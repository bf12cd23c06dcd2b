"""The changes between two instants, or two known times, on every layout."""

from datetime import UTC

import pytest
from committing import append_past, make
from datasets import Dataset, e, s
from remembering import E13, E14, day, remembered
from tables_as_text import instant, table

from backstory.errors import UsageError
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.table import Table

ACTIVE = (
    Column("_fivetran_start", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_end", ColumnType(Kind.UTC_DATETIME)),
    Column("_fivetran_active", ColumnType(Kind.BOOLEAN)),
)


def changes(frame):
    """A line per record: the change, its key, and the changed columns."""
    lines = []
    for row in frame.orderBy("key").toArrow().to_pylist():
        key = " ".join(map(str, row["key"].values()))
        pairs = (f"{name}:{row['before'][name]}>{row['after'][name]}" for name in row["changed"])
        lines.append(" ".join([row["change"], key, *pairs]))
    return lines


def test_diff_compares_two_instants_at_one_known_time(store):
    """V96 by E13: The differences are right in both directions, now and as known at a time."""
    history = remembered(store, "differing", E13)
    assert changes(history.diff(day(5), day(12))) == ["added k"]
    assert changes(history.diff(day(12), day(17))) == ["changed k v:a>c"]
    assert changes(history.diff(day(25), day(12))) == ["changed k v:b>a"]
    assert changes(history.diff(day(12), day(17), known_at=day(2))) == []
    assert changes(history.diff(day(12), day(25), known_at=day(2))) == ["changed k v:a>b"]
    assert changes(history.diff(day(12), day(25), known_at=day(0))) == []
    (row,) = history.diff(day(12), day(17)).collect()
    assert (row.key.asDict(), row.before.asDict(), row.after.asDict(), row.changed) == (
        {"k": "k"},
        {"k": "k", "v": "a"},
        {"k": "k", "v": "c"},
        ["v"],
    )


def test_diff_compares_two_known_times_for_one_instant(store):
    """V96 by E14: Versions that a rewind withdrew are removed. Facts are on neither side."""
    history = remembered(store, "relearnt", E14)

    def learnt(first, second, at):
        return changes(history.diff(day(first), day(second), axis="recorded", at=day(at)))

    assert learnt(0, 1, 15) == ["added k"]
    assert learnt(1, 3, 25) == ["changed k v:a>x", "added m"]
    assert learnt(3, 4, 25) == ["changed k v:x>a", "removed m"]
    assert learnt(1, 5, 25) == ["changed k v:a>b"]
    assert learnt(1, 5, 15) == learnt(2, 3, 15) == []
    assert changes(history.diff(day(3), day(5), axis="recorded")) == ["changed k v:x>b", "removed m"]  # now
    for wrong in ({"at": day(1)}, {"axis": "recorded", "known_at": day(1)}):
        with pytest.raises(UsageError, match="Use the one that belongs to the axis"):
            history.diff(day(1), day(2), **wrong)
    with pytest.raises(UsageError, match="`axis=` must be valid or recorded, not 'other'"):
        history.diff(day(1), day(2), axis="other")


def test_indistinguishable_values_are_no_difference(spark, store):
    """NULLs, NaNs, both zeros and maps in any order are equal, so their new version is not a difference."""
    name = TableName("reading", "alike")
    drop(store, name)
    make(store, Shape(name, (Column("id", ColumnType(Kind.LONG)), *ACTIVE), ("id",), Layout.FIVETRAN_HISTORY))
    into = store.sql_name(name)
    spark.sql(f"ALTER TABLE {into} ADD COLUMNS (d DOUBLE, m MAP<STRING, STRUCT<x: MAP<INT, INT>>>, t STRING)")
    versions = """
        (1, 'T1', 'T2', double('nan'), map('a', struct(map(1, 1, 2, 2)), 'b', null), null),
        (1, 'T2', null, double('nan'), map('b', null, 'a', struct(map(2, 2, 1, 1))), null),
        (2, 'T1', 'T2', 0.0, map('a', struct(map(1, 1))), 'x'),
        (2, 'T2', null, -0.0, map('a', struct(map(1, 2))), null),
        (3, 'T1', 'T2', null, map(), 'gone')
    """
    for word in ("T1", "T2"):
        versions = versions.replace(f"'{word}'", f"TIMESTAMP '{instant(word).isoformat()}'")
    spark.sql(
        f"INSERT INTO {into} SELECT id, begun, coalesce(ended, TIMESTAMP '9999-12-31T23:59:59.999Z'), "
        f"ended IS NULL, d, cast(m AS MAP<STRING, STRUCT<x: MAP<INT, INT>>>), t "
        f"FROM VALUES {versions} AS v(id, begun, ended, d, m, t)"
    )
    differences = Table(store, name).diff(instant("T1"), instant("T2"))
    rows = {row.key.id: (row.change, row.changed) for row in differences.collect()}
    assert rows == {2: ("changed", ["m", "t"]), 3: ("removed", [])}


def test_the_recorded_axis_of_fivetran_tables_compares_commits(spark, store):
    """This includes a table without a history. A column added since then changes in every record."""
    name = TableName("reading", "committed")
    for layout, more in ((Layout.FIVETRAN_HISTORY, ACTIVE), (Layout.FIVETRAN_LIVE, ())):
        drop(store, name)
        fields = (Column("id", ColumnType(Kind.LONG)), Column("v", ColumnType(Kind.STRING)), *more)
        make(store, Shape(name, fields, ("id",), layout))
        into = store.sql_name(name)
        first, second = ("1 a", "2 b"), ("3 c",)
        for lines in (first, second):
            tail = " T1 TMAX true" if more else ""
            rows = [
                tuple(row.values())
                for line in lines
                for row in table(f"id v{' start end active' if more else ''}\n{line}{tail}")
            ]
            append_past(store, name, rows)
        spark.sql(f"DELETE FROM {into} WHERE id = 1")
        times = [each.committed_at for each in existing(store, name).commits[-3:]]
        differences = Table(store, name).diff(times[0], times[2], axis="recorded")
        assert changes(differences) == ["removed 1", "added 3"]
    with pytest.raises(UsageError, match="keeps no history"):
        Table(store, name).diff(times[0], times[2])


def test_datasets_are_compared_by_key_and_keyless_logs_by_row(store, tmp_path):
    snapshot = Dataset(store, tmp_path, "{kind: Snapshot, primaryKey: [city]}", columns="city STRING, n INT")
    for rows in ("A,1 B,1", "A,2 C,1"):
        snapshot.push(rows)
    history = Table(store, snapshot.table.shape.table)
    assert changes(history.diff(e(1), e(2))) == ["changed A n:1>2", "removed B", "added C"]
    assert changes(history.diff(s(1), s(2), axis="recorded", at=e(2))) == [
        "changed A n:1>2", "removed B", "added C",
    ]  # fmt: skip
    columns = "event_time TIMESTAMP, city STRING, n INT"
    append = Dataset(store, tmp_path, "{kind: Append}", columns=columns)
    ledger = Dataset(
        store,
        tmp_path,
        "{kind: Ledger, primaryKey: [city], encoding: op, onConflict: correct}",
        columns=columns,
    )
    times = [e(number).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for number in range(4)]
    for dataset in (append, ledger):
        dataset.push(f"{times[1]},A,1")
        dataset.push(f"{times[2]},A,2 {times[3]},A,2")
    ledger.push(f"{times[1]},A,9")
    rows, events = (Table(store, each.table.shape.table) for each in (append, ledger))
    assert changes(rows.diff(e(1), e(3))) == ["added A 2", "added A 2"]
    assert changes(events.diff(e(1), e(3))) == ["added A", "added A"]
    assert changes(events.diff(s(2), s(3), axis="recorded", at=e(3))) == ["changed A n:1>9"]


def test_a_notebook_shows_differences_as_html(store):
    """The drawing has a row per changed value, as text, or reports that nothing changed."""
    life = remembered(store, "drawn", E13.replace(" c ", " <c> "))
    drawn = life.diff(day(12), day(17))._repr_html_()
    cells = "<td>k=k</td><td>changed</td><td>v</td><td>a</td><td>&lt;c&gt;</td>"
    assert drawn.endswith(f"<tr>{cells}</tr></table>")
    assert life.diff(day(12), day(13))._repr_html_().endswith("<p>Nothing changed.</p>")
