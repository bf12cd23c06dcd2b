"""The errors for a full disk (`disk-full`, exit code 75) and for other faults of the storage."""

import sqlite3
from pathlib import Path

import pytest

from backstory.engine import deliver
from backstory.errors import Failed, TryAgain
from backstory.formats.memory import no_room
from backstory.stores.iceberg.faults import translate_faults

FULL = "/dev/full"


def by_java(spark):
    """A full disk while Iceberg writes its files."""
    spark._jvm.java.io.FileOutputStream(FULL).write(1)


def raise_file_not_found(spark, reason):
    """Java's error for a file that it cannot open or create is also its error for a missing file."""
    future = spark._jvm.java.util.concurrent.CompletableFuture()
    cause = spark._jvm.java.io.FileNotFoundException(f"/w/data/a.parquet ({reason})")
    future.completeExceptionally(cause)
    future.join()


def by_a_missing_file(spark):
    raise_file_not_found(spark, "No space left on device")


def by_a_task(spark):
    """A full disk in a task that spills or shuffles."""
    spark.range(1).selectExpr("raise_error('java.io.IOException: No space left on device')").collect()


def by_a_worker(spark):
    """A full disk in Python, next to Spark."""

    def write(rows):
        Path(FULL).write_bytes(b"1")
        return rows

    spark.range(1).mapInArrow(write, "id long").collect()


def by_the_driver(_):
    Path(FULL).write_bytes(b"1")


@pytest.mark.parametrize("write", [by_java, by_a_missing_file, by_a_task, by_a_worker, by_the_driver])
def test_a_full_disk_is_reported_and_not_retried(spark, write):
    """Only one attempt is made, because space does not free itself. The call may be repeated later."""
    tries = []

    def act():
        tries.append(1)
        with translate_faults("crm.customer"):
            write(spark)

    with pytest.raises(TryAgain) as error:
        deliver.retry(act)
    assert (error.value.code, error.value.exit_code, len(tries)) == ("disk-full", 75, 1)
    assert "crm.customer" in error.value.message
    assert "make room" in error.value.remedy


def test_a_view_with_the_name_of_a_table_is_not_reported_as_a_nested_field(spark):
    """Iceberg reports both as names that already exist."""
    message = "AlreadyExistsException: View with same name already exists: crm.customer"
    with pytest.raises(Failed) as error, translate_faults("crm.customer"):
        spark.range(1).selectExpr(f"raise_error('{message}')").collect()
    assert error.value.code == "spark-failed"


def test_other_file_errors_are_not_reported_as_a_full_disk(spark):
    place = "/dev/null/x"
    for write in (lambda: spark._jvm.java.io.FileOutputStream(place), Path(place).touch):
        with pytest.raises(Failed) as error, translate_faults("crm.customer"):
            write()
        assert error.value.code == "store-failed"


REASONS = {
    "Read-only file system": "store-failed",
    "Permission denied": "store-failed",
    "Is a directory": "store-failed",
    "Too many open files": "store-failed",
    "File name too long": "store-failed",
    "No such file or directory": "file-lost",
}


@pytest.mark.parametrize("reason", REASONS)
def test_only_a_file_that_does_not_exist_is_reported_as_lost(spark, reason):
    """If the storage does not let Java use a file, the error has the reason, and the remedy is the storage."""
    with pytest.raises(Failed) as error, translate_faults("crm.customer"):
        raise_file_not_found(spark, reason)
    assert error.value.code == REASONS[reason]
    if error.value.code == "store-failed":
        assert f"({reason})" in error.value.message
        assert error.value.remedy.startswith("The table is unchanged; fix the storage")


def test_a_full_disk_is_recognised_in_sqlites_error_text():
    """The driver of the embedded catalog puts the name of SQLite's code before its text."""
    with sqlite3.connect(":memory:") as catalog:
        catalog.execute("CREATE TABLE t (x)")
        catalog.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError) as full:
            catalog.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert full.value.sqlite_errorname == "SQLITE_FULL"
    assert no_room(f"[{full.value.sqlite_errorname}] {full.value}", "crm.t").code == "disk-full"
