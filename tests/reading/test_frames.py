"""The state of a table at an instant and at a recorded time, with edge cases of ends and keys."""

from datetime import UTC, datetime, timedelta

import pytest
from committing import append_past, commit, make
from datasets import Dataset, e, s
from remembering import E13, E14, day, lives, remembered
from tables_as_text import instant, table

from backstory.errors import Refused, UsageError
from backstory.model.change import Change
from backstory.model.layout import ACTIVE, END, START, Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.model.versions_layout import KNOWN_FROM
from backstory.reading.frames import table_in_session
from backstory.reading.queries import translate_query_faults
from backstory.stores.iceberg.create import drop
from backstory.stores.iceberg.store import existing
from backstory.table import Table

COLUMNS = {
    "id": Kind.LONG,
    "v": Kind.STRING,
    START: Kind.UTC_DATETIME,
    END: Kind.UTC_DATETIME,
    ACTIVE: Kind.BOOLEAN,
}


@pytest.fixture
def history(store):
    """A history with these rows, without any checks."""
    name = TableName("reading", "lives")

    def made(text):
        columns = tuple(Column(each, ColumnType(kind)) for each, kind in COLUMNS.items())
        drop(store, name)
        make(store, Shape(name, columns, ("id",), Layout.FIVETRAN_HISTORY))
        append_past(store, name, [tuple(row.values()) for row in table(text)])
        return Table(store, name)

    return made


def rows_in(frame):
    with translate_query_faults("a table"):
        return sorted((row["id"], row["v"]) for row in frame.toArrow().to_pylist())


BORDERS = """id v       start end  active
             1  closed  T1    T3   -
             2  open    T1    TMAX -
             3  endless T1    -    true
             4  latter  T4    TMAX true
             5  long    T1    TMAX true
             5  within  T2    TMAX true
             6  beyond  T1    T5   false
             6  earlier T2    T3   false
"""


def test_a_key_has_at_most_one_row_at_any_instant(history):
    """Law 6: The end decides if the flag is NULL. If versions overlap, the last to begin counts."""
    sent_history = history(BORDERS)
    assert rows_in(sent_history.current()) == [(2, "open"), (3, "endless"), (4, "latter"), (5, "within")]
    assert rows_in(sent_history.as_of(instant("T2"))) == [
        (1, "closed"),
        (2, "open"),
        (3, "endless"),
        (5, "within"),
        (6, "earlier"),
    ]
    assert rows_in(sent_history.as_of(instant("T4"))) == rows_in(sent_history.current())


@pytest.mark.parametrize("flag", ["-", "false"])
def test_a_version_without_an_end_that_is_not_open_is_refused(history, flag):
    """Neither flag nor end shows whether the version is still true, so the error contains the cause."""
    sent_history = history(f"id v start end active\n1 a T1 - {flag}")
    for question in (sent_history.current, lambda: sent_history.as_of(instant("T2"))):
        with pytest.raises(Refused, match="has no _fivetran_end"):
            rows_in(question())


def test_a_key_is_read_as_its_columns_type(history):
    """A text is read as the key's type. Any other text is wrong usage, not a fault."""
    sent_history = history("id v start end active\n7 a T1 TMAX true")
    assert [row["v"] for row in sent_history.timeline("7").versions] == ["a"]
    assert str(sent_history.timeline("8")) == "There is no version of this record."
    with pytest.raises(UsageError, match="'abc' is not a BIGINT, the type of column id"):
        sent_history.timeline("abc")
    assert datetime(2024, 2, 29, tzinfo=UTC) < sent_history.timeline(7).versions[0]["valid_from"]


def test_the_scan_for_one_record_filters_by_its_key(history, store):
    """`as_of` and `current` by key skip files without the key, on both kinds of history."""
    sent, native = history("id v start end active\n7 a T1 TMAX true"), remembered(store, "one_record", E13)
    for versions, key, condition in ((sent, 7, "id = 7"), (native, "k", "k = 'k'")):
        for frame in (versions.as_of(instant("T2"), key=key), versions.current(key=key)):
            plan = frame._jdf.queryExecution().executedPlan().toString()
            assert condition in plan.partition("filters=")[2].partition("]")[0], plan
    assert [row["v"] for row in sent.as_of(instant("T2"), key="7", columns="v").collect()] == ["a"]
    assert sent.as_of(instant("T2"), key=8).count() == 0
    with pytest.raises(
        UsageError, match=r"reading.lives has no key column id2; the key is id. Write id=7, or only 7."
    ):
        sent.current(key="id2=7")


def lives_in(frame):
    return lives(frame.toArrow().to_pylist())


def known(native, at=None):
    """Every version as known at a time, and the time."""
    return lives_in(
        table_in_session(native.store, native.name).at(None if at is None else day(at)).versions()
    )


def test_E13_each_known_time_shows_its_own_versions(store):
    """V6, V93, V94: Withdrawn statements are visible at their time. Before the first one there is nothing."""
    native = remembered(store, "e13", E13)
    assert [known(native, at) for at in (0, 1, 2, 3, None)] == [
        [],
        ["k: a[10,)"],
        ["k: a[10,20) b[20,)"],
        ["k: a[10,15) c[15,20) b[20,)"],
        ["k: a[10,15) c[15,20) b[20,)"],
    ]
    assert lives_in(native.as_of(day(17))) == ["k: c[15,20)"]
    assert lives_in(native.as_of(day(17), known_at=day(2))) == ["k: a[10,20)"]
    assert lives_in(native.as_of(day(25), known_at=day(1))) == ["k: a[10,)"]
    assert lives_in(native.current(known_at=day(1))) == ["k: a[10,)"]
    assert lives_in(native.as_of(day(20))) == ["k: b[20,)"]  # V99: an end belongs to the next version


def test_E14_rewound_versions_stay_visible_at_earlier_known_times(store):
    """V92: Readers skip facts and marks. The rewind withdraws exactly its versions."""
    native = remembered(store, "e14", E14)
    assert [known(native, at) for at in (1, 2, 3, 4, 5)] == [
        ["k: a[10,)"],
        ["k: a[10,20) x[20,)"],
        ["k: a[10,20) x[20,)", "m: y[20,)"],
        ["k: a[10,)"],
        ["k: a[10,20) b[20,)"],
    ]
    assert known(native) == known(native, 5)
    assert lives_in(native.as_of(day(30))) == lives_in(native.current()) == ["k: b[20,)"]
    name = store.sql_name(native.name)
    store.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{KNOWN_FROM}' = '{day(3).isoformat()}')")
    assert known(native, 3) == ["k: a[10,20) x[20,)", "m: y[20,)"]
    with pytest.raises(UsageError) as pruned:
        native.current(known_at=day(2.5))
    assert pruned.value.code == "known-pruned"
    with pytest.raises(UsageError, match="no zone"):
        native.current(known_at=datetime(2024, 1, 1))


def test_a_history_at_a_known_time_has_the_columns_of_that_commit(spark, store):
    """The newest commit not after the time counts. Expired ones are refused, and before the first there is
    nothing."""
    name = TableName("reading", "travelled")
    columns = {"id": Kind.LONG, "v": Kind.STRING}
    start = (
        ("_fivetran_start", Kind.UTC_DATETIME),
        ("_fivetran_end", Kind.UTC_DATETIME),
        ("_fivetran_active", Kind.BOOLEAN),
    )
    drop(store, name)
    fields = tuple(Column(each, ColumnType(kind)) for each, kind in (*columns.items(), *start))
    make(store, Shape(name, fields, ("id",), Layout.FIVETRAN_HISTORY))
    into = store.sql_name(name)

    def add(text):
        append_past(store, name, [tuple(row.values()) for row in table(text)])

    add("id v start end active\n1 a T1 T3 false")
    spark.sql(f"ALTER TABLE {into} RENAME COLUMN id TO number")
    spark.sql(f"ALTER TABLE {into} ADD COLUMN w STRING")
    spark.sql(f"""ALTER TABLE {into} SET TBLPROPERTIES ('backstory.key' = '["number"]')""")
    add("id v start end active w\n1 b T3 TMAX true new")
    sent_history = Table(store, name)
    first, second = (each.committed_at for each in existing(store, name).commits[-2:])
    before = sent_history.as_of(instant("T2"), known_at=first)
    assert before.columns == ["id", "v", "valid_from", "valid_to"]
    assert [(row.id, row.v) for row in before.collect()] == [(1, "a")]
    assert [row.w for row in sent_history.current(known_at=second).collect()] == ["new"]
    assert sent_history.current(known_at=second - timedelta(milliseconds=1)).collect() == []
    assert sent_history.current(known_at=first - timedelta(days=1)).collect() == []
    spark.sql(
        f"CALL {store.catalog}.system.expire_snapshots(table => '{name}', retain_last => 1, "
        f"older_than => TIMESTAMP '{datetime.now(UTC).isoformat()}')"
    )
    with pytest.raises(Refused) as gone:
        sent_history.current(known_at=first)
    assert gone.value.code == "snapshots-expired"
    assert sent_history.current(known_at=second).count() == 1


def test_a_live_table_is_readable_at_an_earlier_commit(spark, store):
    name = TableName("reading", "live")
    drop(store, name)
    make(store, Shape(name, (Column("id", ColumnType(Kind.LONG)),), ("id",), Layout.FIVETRAN_LIVE))
    for number in (1, 2):
        rows = spark.createDataFrame([(number,)], "id LONG").toArrow()
        commit(store, existing(store, name), Change(added=rows))
    first = existing(store, name).commits[-2].committed_at
    live = Table(store, name)
    assert [row.id for row in live.current(known_at=first).collect()] == [1]
    assert live.current().count() == 2
    with pytest.raises(UsageError, match="keeps no history"):
        live.as_of(day(1), known_at=first)


def test_known_times_of_an_event_log_are_system_times(store, tmp_path):
    merge = "{kind: Snapshot, primaryKey: [city]}"
    dataset = Dataset(store, tmp_path, merge, columns="city STRING, population INT")
    for rows in ("A,1 B,1", "A,2"):
        assert dataset.push(rows).error is None
    log = Table(store, dataset.table.shape.table)

    def cities(frame):
        return sorted((row.city, row.population, row.valid_to) for row in frame.collect())

    assert cities(log.current(known_at=s(1))) == [("A", 1, None), ("B", 1, None)]
    assert cities(log.as_of(e(2), known_at=s(1))) == cities(log.current(known_at=s(1)))
    assert [row[:2] for row in cities(log.as_of(e(2), known_at=s(2)))] == [("A", 2)]
    assert cities(log.current(known_at=s(1) - timedelta(microseconds=1))) == []
