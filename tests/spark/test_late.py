"""Spark starts only if it is needed."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from histories_as_text import written
from historizing import PEPPER, dataset, document, save
from manifesting import manifest, polling
from pyspark import SparkContext
from pyspark.sql.functions import col
from sleeping import Sleeping
from spoilt_histories import recorded

import backstory
from backstory.doors.odf import door, registry
from backstory.doors.odf.door import newest_rows
from backstory.errors import Refused
from backstory.model.layout import Layout
from backstory.model.table import TableName
from backstory.spark.java_names import java_class
from backstory.spark.versions import sessions_class
from backstory.stores.iceberg.store import IcebergStore
from backstory.table import Table
from backstory.upkeep.checking import check_tables
from backstory.upkeep.repairing import repair
from backstory.warehouse import Warehouse


@pytest.fixture
def late(spark, tmp_path, monkeypatch):
    """A separate warehouse, in the running Java."""
    monkeypatch.setenv("BACKSTORY_PEPPER", PEPPER)
    new_warehouse = backstory.open(tmp_path / "warehouse")
    yield new_warehouse
    started = new_warehouse.store.session.started
    new_warehouse.close()
    assert started is None


def test_a_copy_held_by_the_driver_needs_no_spark(late, tmp_path):
    csv, parquet = tmp_path / "a.csv", tmp_path / "a.parquet"
    csv.write_text("id,name\n1,a\n2,b\n")
    assert late.snapshot(csv, into="crm.a", key="id").counts["new"] == 2
    pq.write_table(pa.table({"id": [1, 3], "name": ["x", "c"]}), parquet)
    plan = late.snapshot(parquet, into="crm.a", dry_run=True)
    assert (plan.keys["new"], plan.keys["changed"], plan.keys["closed"]) == (["3"], ["1"], ["2"])
    done = late.snapshot(parquet, into="crm.a")
    assert done.counts == {"new": 1, "changed": 1, "closed": 1, "reopened": 0, "unchanged": 0}
    again = late.snapshot(pa.table({"id": [1, 3], "name": ["x", "c"]}), into="crm.a")
    assert (again.counts["unchanged"], again.snapshot_id) == (2, None)
    with pytest.raises(Refused, match="type"):
        late.snapshot(pa.table({"id": [1], "name": [1]}), into="crm.a")


def test_copies_without_rows_need_no_spark(late):
    """A table may be empty from its first copy on, or become empty."""
    sources = {
        "empty": pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}),
        "full": pa.table({"id": [1], "name": ["a"]}),
    }
    options = {"allow_empty": True, "max_delete_ratio": 1.0}
    counts = [
        late.snapshot(sources[name], into="crm.empty", key="id", **options).counts
        for name in ("empty", "empty", "full", "empty", "empty", "full")
    ]
    outcomes = [{name for name, count in each.items() if count} for each in counts]
    assert outcomes == [set(), set(), {"new"}, {"closed"}, set(), {"reopened"}]


def test_a_table_with_memory_needs_no_spark(late):
    """This covers copies before and between others, scoped and restated ones, and feeds."""

    def copy(at, *values, **options):
        rows = pa.table({"id": list(range(len(values))), "name": list(values)})
        return late.snapshot(rows, into="crm.old", key="id", at=f"2026-01-{at:02}", **options)

    copy(3, "a")
    copy(5, "b")
    assert copy(1, "z", backfill=True).counts["new"] == 0
    assert copy(7, "c", backfill=True).counts["changed"] == 1
    assert copy(6, "b", backfill=True).counts["unchanged"] == 1
    assert copy(7, "d", restate=True).counts["changed"] == 1
    copy(8, "e", scope={"id": 0})
    event = pa.table({"id": [0], "name": ["f"], "at": ["2026-01-09T00:00:00Z"]})
    late.apply(event, into="crm.old", key="id", sequence_by="at")
    with pytest.raises(Refused, match="copies between"):
        copy(4, "y")


def test_a_model_with_a_small_stage_needs_no_spark(late, tmp_path):
    model = save(document(dataset(input="stage.csv", historize=True)), tmp_path)
    counts = []
    for rows in ("a,1\nb,1\n", "a,2\nc,1\n", "a,2\nc,1\n"):
        (tmp_path / "stage.csv").write_text(f"k,a\n{rows}")
        (done,) = late.historize(model)
        counts.append([done.status, *done.counts.values()])
    assert counts == [
        ["success", 2, 0, 0, 0, 0],
        ["success", 1, 1, 1, 0, 0],
        ["unchanged", 0, 0, 0, 0, 2],
    ]


READ = "{kind: csv, header: true, schema: {fields: [{name: city, type: String}, {name: n, type: Int32}]}}"
ASKED = {
    "timeline": lambda table: table.timeline("a"),
    "changes": lambda table: table.changes(),
    "current changes": lambda table: table.changes(current=True, net=True),
    "changes by time": lambda table: table.changes(since="2024-02-28"),
    "views": lambda table: table.views(dry_run=True),
}


def test_calls_that_name_columns_start_spark_first(spark, warehouse, tmp_path):
    """Spark has no columns without a session, and each query may be the first of its process."""
    store = IcebergStore(spark)
    native = written(store, "asleep", Layout.VERSIONS, "k v from to recorded\na x T1 - T1\n")
    recorded(store, native, "2024-02-29T00:00:05Z")
    cities = Dataset(store, tmp_path, "{kind: snapshot, primaryKey: [city]}", "city STRING, n INT")
    cities.push("A,1")
    calls = {name: partial(_of_table, native, ask) for name, ask in ASKED.items()}
    calls["tail"] = lambda late: newest_rows(
        late, registry.stored_datasets(late, "datasets").existing(cities.name), 9, 0
    )
    calls["events"] = lambda late: door.events(late, cities.name, "observed", namespace="datasets")
    calls["verify"] = lambda late: door.verify_dataset(late, cities.name, namespace="datasets")
    calls["inspect"] = lambda late: door.inspect(late, cities.name, namespace="datasets")
    calls["repair"] = lambda late: repair(late, native)
    calls["pull"] = lambda late: door.pull_all(
        late, [_polling(tmp_path)], door.IngestRequest(), namespace="datasets"
    )
    calls["check"] = lambda late: check_tables(late, [native, TableName("datasets", cities.name)])
    calls["sql"] = lambda late: Warehouse(late, embedded=False).sql(f"select * from {native}")
    for name, ask in calls.items():
        sleeping = Sleeping(spark, warehouse)
        try:
            ask(IcebergStore(sleeping))
        except AssertionError as asleep:
            pytest.fail(f"{name} names columns before there is a session: {asleep!r}")
        finally:
            sleeping.wake()


def _polling(folder):
    """A manifest, and a file that it fetches."""
    (folder / "towns.csv").write_text("city,n\nA,1\n")
    source = polling("{kind: snapshot, primaryKey: [city]}", fetch="{kind: url, url: towns.csv}", read=READ)
    (folder / "towns.yaml").write_text(manifest(source).replace("name: cities", "name: asleep"))
    return folder / "towns.yaml"


def _of_table(name, ask, late):
    return ask(Table(late, name))


def test_a_column_named_before_the_session_starts_spark(spark, warehouse):
    """A placeholder for the context starts the session on first use. Unused, it leaves no trace."""
    unasked = Sleeping(spark, warehouse)
    unasked.stop()
    assert SparkContext._active_spark_context is None
    sleeping = Sleeping(spark, warehouse)
    assert sleeping.started is None
    assert str(col("early") + 1) == str(col("early") + 1)
    assert sleeping.started is spark
    assert SparkContext._active_spark_context is spark.sparkContext


def test_a_thread_older_than_the_session_uses_its_settings(spark, tmp_path):
    """Spark reads the settings from the thread's Java, including Iceberg's catalog for writing frames."""
    java = spark._jvm
    sessions = java_class(java, sessions_class())

    def active():
        sessions.clearActiveSession()  # like a thread that began before the session
        before = sessions.getActiveSession().isDefined()
        frame = IcebergStore(spark).spark.range(3)
        frame.writeTo("backstory.threads.t").create()
        return before, sessions.getActiveSession().isDefined()

    spark.sql("CREATE NAMESPACE IF NOT EXISTS backstory.threads")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(active).result() == (False, True)


def test_concurrent_threads_create_a_catalog_only_once(late):
    made = []

    def make():
        made.append(1)
        time.sleep(0.05)
        return Closable()

    with ThreadPoolExecutor(4) as pool:
        catalogs = list(pool.map(lambda _: late.store.session.catalog("other", make), range(4)))
    assert len(made) == len(set(map(id, catalogs))) == 1


class Closable:
    def close(self):
        pass
