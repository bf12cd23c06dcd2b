"""Maintain: few files, few snapshots, and the same query results (native.md V33, V34, V90, V91)."""

import pytest
from committing import snapshots_of
from datasets import Dataset
from historizing import dataset, document
from historizing_on_spark import SparkPlace
from specification.rewind import live_rows_at
from stored_versions import life, make_table, put, rows_in, shown, t, version

from backstory.doors.odf import door
from backstory.errors import TryAgain, UsageError
from backstory.model.instant import iso
from backstory.model.table import TableName
from backstory.model.versions_layout import KNOWN_FROM, MEMORY_SINCE, SETTLE_AFTER, SETTLED
from backstory.stores.tables import existing
from backstory.table import Table

AGED = "ALTER TABLE backstory.{0} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '1')"
LINEAGE = ("_row_id", "_last_updated_sequence_number")


def ids_of(store, name):
    return {row["_row_id"]: row for row in rows_in(store, name, *LINEAGE)}


def snapshots(store, name):
    return [each.id for each in snapshots_of(existing(store, name))]


def files(store, name, kind):
    return store.spark.table(f"backstory.{name}.{kind}").count()


def test_E17_settling_removes_memory_without_changing_any_answer(store):
    """With compaction, expiry and a cursor, rows keep ids and last updates."""
    gone = version(1, None, 30, role="fact", kind="delete")
    silent = [
        version(2, None, 10, role="fact", kind="upsert"),
        version(2, None, 15, role="fact", kind="upsert"),
    ]
    fold = [version(1, "a", 10, 30, kind="upsert"), gone, version(2, "A", 5, kind="upsert"), *silent]
    name = make_table(store, "maintained")
    before = life([version(1, "a", 10, kind="upsert")], fold)
    put(store, name, before[:1], properties={SETTLED: "[]", MEMORY_SINCE: iso(t(1))})
    put(store, name, before[1:3])
    put(store, name, before[3:])
    put(store, name, [version(9, "z", 5) | {"recorded_at": t(3)}])
    put(store, name, [], "id = 9", removed="yes")
    store.spark.sql(AGED.format(name))
    store.spark.sql(f"ALTER TABLE backstory.{name} CREATE TAG `backstory-cursor-crm` RETAIN 30 DAYS")
    table, was, stood = Table(store, name), ids_of(store, name), snapshots(store, name)
    plan = table.maintain(settle_before=t(20), dry_run=True)
    assert (plan.snapshots_expired, snapshots(store, name)) == (4, stood)
    done = table.maintain(settle_before=t(20))
    assert (done.rows_settled, done.snapshots_expired) == (2, 4)
    assert done.files > done.files_after == files(store, name, "data_files")
    assert files(store, name, "delete_files") == 0
    assert stood[-1] in snapshots(store, name)  # the cursor's snapshot
    after = ids_of(store, name)
    assert after == {
        number: row for number, row in was.items() if row["valid_from"] > t(20) or not _fact(row)
    }
    lines = shown(live_rows_at(after.values(), t(9)))
    assert lines == ["1 None 30 fact delete", "1 a [10,30) upsert", "2 A [5,) upsert"]
    properties = existing(store, name).properties
    assert properties[SETTLED] == f'[null, "{iso(t(20))}"]'
    metadata = existing(store, name).location
    again = table.maintain(settle_before=t(10))
    assert (again.rows_settled, again.files, again.snapshots_expired) == (0, again.files_after, 0)
    assert existing(store, name).location == metadata


def test_V34_an_earlier_settle_time_does_not_shorten_the_settled_interval(store):
    """Settling within the interval extends it to all earlier times, and never moves its end back."""
    name = make_table(store, "settled_by_copies")
    rows = [version(1, "a", 10, 20), version(1, "b", 20), version(2, None, 5, role="fact", kind="delete")]
    put(
        store,
        name,
        life(rows),
        properties={SETTLED: f'["{iso(t(10))}", "{iso(t(20))}"]', MEMORY_SINCE: iso(t(1))},
    )
    for time, removed in ((7, 0), (15, 1), (12, 0)):
        assert Table(store, name).maintain(settle_before=t(time)).rows_settled == removed
    assert existing(store, name).properties[SETTLED] == f'[null, "{iso(t(20))}"]'


@pytest.mark.parametrize("bound", ["settle_before", "known_from"])
def test_a_future_bound_is_refused_without_a_commit(store, bound):
    """Every later copy, or every query of an earlier knowledge, would be refused until then."""
    name = make_table(store, f"future_{bound}", life([version(1, "a", 10)]))
    put(store, name, [], properties={SETTLED: "[]"})
    metadata = existing(store, name).location
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=r"2962-01-01.* a time after now") as refused:
            Table(store, name).maintain(**{bound: "2962-01-01"}, dry_run=dry_run)
        assert refused.value.code == "bad-option"
    assert existing(store, name).location == metadata


def _fact(row):
    return (row["_memory"] or {}).get("role") == "fact"


def test_V90_pruning_removes_only_knowledge_before_its_time(store):
    """If there is much memory, a time to settle is proposed. A table may specify the age of its memory."""
    rows = life(
        [version(1, "a", 10)], [version(1, "a", 10, 20)], [version(1, "a", 10, 15)], [version(2, "b", 1)]
    )
    mark = version(None, None, 20, role="fact", kind="copy") | {"recorded_at": t(4)}
    name = make_table(store, "pruned", [*rows, mark])
    done = Table(store, name).maintain(known_from=t(2))
    kept_rows = rows_in(store, name)
    assert done.rows_settled == 1
    assert (done.memory_share, done.propose_settle_before) == (0.75, iso(t(20)))
    assert existing(store, name).properties[KNOWN_FROM] == iso(t(2))
    for known in (2, 3, 4):
        assert shown(live_rows_at(kept_rows, t(known))) == shown(live_rows_at([*rows, mark], t(known)))
    with pytest.raises(UsageError) as caught:
        Table(store, name).rewind(t(1))
    assert caught.value.code == "known-pruned"
    put(store, name, [], properties={SETTLED: "[]", SETTLE_AFTER: "5 days"})
    stood = len(snapshots(store, name))
    assert Table(store, name).maintain().rows_settled == 0
    assert existing(store, name).properties[SETTLED] == f'[null, "{iso(t(15))}"]'
    assert len(snapshots(store, name)) == stood + 1  # a moved bound needs a snapshot


def test_runs_are_recognised_after_their_commits_expired(store, tmp_path):
    """Logged commits may expire. A run that only its commit records, and a lease's base, are kept."""
    place = SparkPlace(store, tmp_path)
    place.use(document(dataset(input="stage.csv")))
    try:
        for run, rows in (("r1", "a,1\nb,2"), ("r2", "a,9\nb,2"), ("r3", "a,9\nb,3")):
            (tmp_path / "stage.csv").write_text(f"k,a\n{rows}\n")
            (receipt,) = place.loads(run)
            assert receipt.status == "success"
        history, base = TableName("rawcore", "rc_c_hist"), TableName("rawcore", "rc_c")
        stood = existing(store, history).newest_token
        for each in (history, base):
            store.spark.sql(AGED.format(each))
            done = Table(store, each).maintain()
            assert done.snapshots_expired >= 2, each
        assert existing(store, history).newest_token == stood
        for run in ("r1", "r2", "r3"):
            (again,) = place.loads(run)
            assert (again.status, place.rows("SELECT count(*) FROM rawcore.rc_c_hist")) == ("success", [(4,)])
        store.spark.sql("DELETE FROM backstory.meta.load_run_log WHERE load_run_id = 'r3'")
        left = snapshots(store, history)
        assert Table(store, history).maintain().snapshots_expired == 0
        assert snapshots(store, history) == left
        place.sql("ALTER TABLE rawcore.rc_c_hist SET TBLPROPERTIES ('backstory.loading' = '{}')")
        with pytest.raises(TryAgain):
            Table(store, base).maintain()
    finally:
        place.close()


def test_a_dataset_verifies_and_accepts_data_after_its_commits_expired(store, tmp_path):
    cities = Dataset(
        store, tmp_path, "{kind: Ledger, primaryKey: [city]}", columns="city STRING, population INT"
    )
    for rows in ("A,1 B,1", "C,1", "D,1"):
        assert cities.push(rows).error is None
    name = cities.table.shape.table
    store.spark.sql(AGED.format(f"`{name.schema}`.`{name.name}`"))
    done = Table(store, name).maintain()
    assert (done.files, done.files_after, done.snapshots_expired) == (3, 1, 3)
    assert door.verify_dataset(store, name.name, namespace="datasets").valid
    assert cities.push("E,1").offsets == (4, 4)
    assert door.verify_dataset(store, name.name, namespace="datasets").valid
    with pytest.raises(UsageError, match="keeps no memory"):
        Table(store, name).maintain(settle_before=t(1))
