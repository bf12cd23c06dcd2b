"""Foreign sessions: cached rows are never used as the table's state."""

import subprocess
import sys
from dataclasses import replace

import pytest
from destination import fresh
from own_sessions import ANSWERS, catalog_of, copy, own_session, records, walk

import backstory
from backstory.errors import Failed, Refused, UsageError
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import first_line, translate_faults
from backstory.stores.iceberg.store import load
from backstory.stores.iceberg.workers import error_of_worker, map_batches
from backstory.warehouse import Warehouse


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return catalog_of("jdbc", tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def session(spark, catalog):
    """A session with Iceberg's default settings, and none of ours."""
    return own_session(spark, "own", catalog)


@pytest.fixture(scope="module")
def other(spark, catalog):
    """The session of another program on the same catalog."""
    return own_session(spark, "own", catalog, cached="false")


@pytest.fixture
def own(session):
    return backstory.open(spark=session, catalog="own")


def test_all_methods_work_in_a_session_with_default_settings(session, other):
    """All methods write and read it, and the session's own SQL sees commits immediately."""
    assert walk(session, "own", other) == ANSWERS


def test_a_delivery_by_tasks_leaves_no_frame_behind(session, own):
    """A remaining frame would be planned again for each later commit of the table."""
    session.catalog.clearCache()
    lake = Warehouse(replace(own.store, memory=Memory(0)), embedded=False)
    name, cache = f"kept.{fresh()}", session._jsparkSession.sharedState().cacheManager()
    for day, letters in (("2026-01-01", "abc"), ("2026-01-02", "xb"), ("2026-01-03", "yb")):
        lake.snapshot(copy(session, *letters), into=name, key="id", at=day, max_delete_ratio=1)
        assert cache.isEmpty()
        assert session.table(f"own.{name}").where("valid_to IS NULL").count() == len(letters)


@pytest.fixture
def table_name(session, own):
    """A table with a copy, which the session read by name, and its name."""
    name = f"kept.{fresh()}"
    own.snapshot(copy(session, "a", "b", "c"), into=name, key="id", at="2026-01-01")
    assert session.table(f"own.{name}").count() == 3
    return name


def by_stream(own, _beside, frame, into, folder):
    """Apply a frame as a batch of a stream, which Spark runs in a copy of the session."""
    frame.write.parquet(str(folder / "in"))
    write = own.apply_batch(into=into, key="id", sequence_by="seen")
    stream = own.spark.readStream.schema(frame.schema).parquet(str(folder / "in"))
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def by_session_beside(_own, beside, frame, into, _folder):
    """Apply it in a second session."""
    backstory.open(spark=beside, catalog="own").apply(frame, into=into, key="id", sequence_by="seen")


@pytest.mark.parametrize(
    ("write", "cache"),
    [
        (by_stream, "name"),
        (by_stream, "frame"),
        (by_stream, "view"),
        (by_session_beside, "name"),
        (by_session_beside, "table"),
    ],
)
def test_a_session_reads_the_commits_of_other_sessions(session, other, own, tmp_path, write, cache):
    """This holds for the table, a frame's rows, and rows of CACHE TABLE in the session."""
    into = f"beside.{fresh()}"
    name, rows = f"own.{into}", copy(session, "a", "b", "c")
    own.apply(rows.where("id = 1"), into=into, key="id", sequence_by="seen")
    if cache == "frame":
        session.table(name).cache()
    elif cache == "view":
        session.sql(f"CACHE TABLE view_of_it AS SELECT id, V FROM {name}")
    elif cache == "table":
        session.sql(f"CACHE TABLE {name}")
    try:
        assert session.table(name).count() == 1
        for number in (2, 3):
            folder = tmp_path / str(number)
            folder.mkdir()
            write(own, other, rows.where(f"id = {number}"), into, folder)
            assert session.table(name).count() == number == own.table(into).current().count()
            if cache == "view":
                assert session.table("view_of_it").count() == number
    finally:
        session.catalog.clearCache()
        session.catalog.dropTempView("view_of_it")


def test_a_table_recreated_by_another_writer_is_read(session, other, own, table_name):
    """After another program recreates the table, the next command reads the new one."""
    other.sql(f"DROP TABLE own.{table_name} PURGE")
    elsewhere = backstory.open(spark=other, catalog="own")
    elsewhere.snapshot(copy(other, "z"), into=table_name, key="id", at="2026-02-01")
    assert records(own.table(table_name).current()) == {1: "z"}
    own.snapshot(copy(session, "y"), into=table_name, key="id", at="2026-02-02")
    assert records(elsewhere.table(table_name).current()) == {1: "y"}


def test_a_table_dropped_by_another_writer_is_missing(other, own, table_name):
    other.sql(f"DROP TABLE own.{table_name} PURGE")
    assert load(own.store, TableName(*table_name.split("."))) is None
    with pytest.raises(UsageError) as caught:
        own.table(table_name)
    assert caught.value.code == "no-table"


def test_a_plan_ignores_cached_rows(session, other, own, table_name):
    """The cached version is two commits old, and a copy equal to it changes the others' rows."""
    elsewhere = backstory.open(spark=other, catalog="own")
    elsewhere.snapshot(copy(other, "A", "b", "."), into=table_name, key="id", at="2026-01-02")
    session.table(f"own.{table_name}").cache().count()
    elsewhere.snapshot(copy(other, "A", "b", "C"), into=table_name, key="id", at="2026-01-03")
    done = own.snapshot(copy(session, "a", "b", "c"), into=table_name, key="id", at="2026-01-04")
    assert (done.counts["changed"], done.counts["unchanged"]) == (2, 1)
    assert records(elsewhere.table(table_name).current()) == {1: "a", 2: "b", 3: "c"}
    assert not any(each["violations"] for each in elsewhere.table(table_name).check())
    session.catalog.clearCache()


def test_reading_a_table_keeps_its_cached_rows(session, own, table_name):
    """Reading does not clear a cache."""
    rows = session.table(f"own.{table_name}").cache()
    own.table(table_name).current()
    assert rows.count() == 3
    own.table(table_name).current()
    cached = session._jsparkSession.sharedState().cacheManager().lookupCachedData(rows._jdf).get()
    assert cached.cachedRepresentation().cacheBuilder().isCachedColumnBuffersLoaded()
    rows.unpersist()


@pytest.fixture
def workers(spark, monkeypatch):
    """Give Spark the Python workers of another program."""
    return lambda python: monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))


@pytest.mark.parametrize(
    ("python", "message"), [("bare", "module"), ("/nowhere/python", "cannot be started")]
)
def test_unusable_python_workers_give_an_error_with_a_remedy(store, workers, tmp_path, python, message):
    """For a Python without backstory or pyarrow, or a missing one, the error names PYSPARK_PYTHON."""
    if python == "bare":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
        python = tmp_path / "bare" / "bin" / "python"
    workers(python)
    rows = map_batches(store.spark.range(1), iter, "id long")
    with pytest.raises(UsageError, match=message) as caught, translate_faults("crm.c"):
        rows.collect()
    assert caught.value.code == "python-workers"
    assert str(python) in caught.value.message
    assert f"PYSPARK_PYTHON={sys.executable}" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No space left on device\n\tat java.base", "IOException: No space left on device"),
        ('For input string: "Meier"', "IOException: For input string: …"),
        ("cannot cast 'Meier' to INT", "IOException: cannot cast … to INT"),
        ("/lake/name=Meier/a.parquet (Permission denied)", "IOException: … (Permission denied)"),
        ("refused: jdbc:postgresql://u:secret@host/db", "IOException: refused: …"),
        ("overflow of 3000000000L", "IOException: overflow of …"),
        (None, "IOException"),
    ],
)
def test_the_first_line_of_a_cause_contains_no_values(text, shown):
    """The line contains no quoted values, paths, addresses with logins, or long numbers."""
    assert first_line("IOException", text) == shown
    assert first_line("NumberFormatException", text) == "NumberFormatException"


def test_workers_of_another_python_version_give_an_error():
    """Spark itself refuses such workers."""
    error = error_of_worker(
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.13 than that in driver: 3.11"
    )
    assert error.code == "python-workers"
    assert f"PYSPARK_PYTHON={sys.executable}" in error.remedy
    assert error_of_worker('Cannot run program "chmod": error=2') is None


def test_a_workers_error_is_reported_by_its_class(store):
    """Its message may contain a value. The remedy is still given."""

    def fail(_batches):
        raise ValueError("Meier, Anna")

    with pytest.raises(Failed) as caught, translate_faults("crm.c"):
        map_batches(store.spark.range(1), fail, "id long").collect()
    assert "ValueError" in caught.value.message
    assert "Meier" not in str(caught.value)
    assert "`verbose=True`" in caught.value.remedy


def test_a_table_name_that_leaves_the_warehouse_is_refused(spark, tmp_path):
    """A Hadoop catalog derives folders from names. A name that leaves the warehouse is refused."""
    session = own_session(spark, "paths", catalog_of("hadoop", tmp_path))
    warehouse = backstory.open(spark=session, catalog="paths")
    with pytest.raises(Refused) as caught:
        warehouse.snapshot(copy(session, "a"), into="crm.../../../out", key="id")
    assert caught.value.code == "no-folder"
    assert not list(tmp_path.parent.rglob("out*"))


def test_rows_are_written_to_the_storage_of_the_table(spark, tmp_path):
    """A path without a scheme may belong to a storage other than the local disk, here Java's memory."""
    session = own_session(spark, "aside", catalog_of("in-memory", tmp_path))
    warehouse = backstory.open(spark=session, catalog="aside")
    warehouse.snapshot(copy(session, "a", "b"), into="crm.c", key="id")
    assert records(session.table("aside.crm.c")) == {1: "a", 2: "b"}
    assert not list(tmp_path.rglob("*.parquet"))
