"""One journal on Spark: at most one commit to `meta` per run, and views of runs and steps (section 6)."""

import pytest
from historizing import dataset, document
from historizing_on_spark import SparkPlace

from backstory.stores.iceberg.store import existing, tables


@pytest.fixture
def place(store, tmp_path):
    """A place with two datasets from files, and one that is loaded from the second."""
    place = SparkPlace(store, tmp_path)
    a, b = (dataset(name=f"rc_{name}", input=f"{name}.csv") for name in "ab")
    place.use(document(a, b, dataset(name="rc_c", input="rawcore.rc_b")))
    yield place
    place.close()


def loaded(place, run, at, files, **options):
    """The outcome of each dataset, and the number of commits to the tables of `meta`."""
    for name, rows in files.items():
        (place.folder / f"{name}.csv").write_text("\n".join(["k,a", *rows.split(), ""]))
    receipts = place.loads(run, at, **options)
    store = place.store
    stored = (existing(store, each) for each in tables(store, "meta"))
    return [each.status for each in receipts], sum(len(each.commits) for each in stored)


RUNS = """
    rawcore.rawcore:rc_a r1 1 spark_iceberg success 2 0 0 0 2 0 None
    rawcore.rawcore:rc_b r1 1 spark_iceberg success 1 0 0 0 1 0 None
    rawcore.rawcore:rc_c r1 1 spark_iceberg success 1 0 0 0 1 0 None
    rawcore.rawcore:rc_a r2 1 spark_iceberg success 2 1 1 1 1 0 None
    rawcore.rawcore:rc_b r2 1 spark_iceberg rejected None None None None None None DUPLICATE_KEY
"""
STEPS = """
    rawcore.rawcore:rc_a r2 1 1 preflight 0 success None
    rawcore.rawcore:rc_a r2 1 2 base_delete 1 success None
    rawcore.rawcore:rc_a r2 1 3 base_replace 1 success None
    rawcore.rawcore:rc_a r2 1 4 base_insert 2 success None
    rawcore.rawcore:rc_a r2 1 5 close_changed 1 success None
    rawcore.rawcore:rc_a r2 1 6 close_deleted 1 success None
    rawcore.rawcore:rc_a r2 1 7 insert_changed 1 success None
    rawcore.rawcore:rc_a r2 1 8 insert_new 1 success None
    rawcore.rawcore:rc_a r2 1 9 merge 4 success None
    rawcore.rawcore:rc_b r2 1 1 preflight 0 error DUPLICATE_KEY
"""


def test_a_run_makes_at_most_one_commit_in_meta(place):
    """A run of several datasets makes one commit to meta, even if some fail. Without changes, or as a dry
    run, it makes none. The views show runs and steps as a database's registry does."""
    first, more = {"a": "x,1 y,1", "b": "x,1"}, {"a": "x,2 z,1", "b": "x,1 x,2"}
    assert loaded(place, "r1", 1, first) == (["success"] * 3, 1)
    assert loaded(place, "r3", 3, first) == (["unchanged"] * 3, 1)
    assert loaded(place, "r4", 4, more, dry_run=True) == (["success", "rejected", "rejected"], 1)
    assert loaded(place, "r2", 2, more) == (["success", "rejected", "rejected"], 2)
    counts = "base_row_count, closed_changed, closed_deleted, inserted_changed, inserted_new, unchanged"
    columns = f"dataset_key, load_run_id, attempt_no, engine, status, {counts}, error_code"
    assert (
        shown(place, f"SELECT {columns} FROM meta.hist_run ORDER BY load_run_id, dataset_key") == RUNS.split()
    )
    columns = "dataset_key, load_run_id, attempt_no, step_no, step, rows_affected, status, error_code"
    steps = f"SELECT {columns} FROM meta.hist_step_log WHERE load_run_id = 'r2' ORDER BY dataset_key, step_no"
    assert shown(place, steps) == STEPS.split()
    blocked = (
        "SELECT target_dataset, blocked_by FROM meta.load_run_log WHERE receipt IS NULL AND steps IS NULL"
    )
    assert place.rows(blocked) == [("rc_c_hist", "rawcore.rc_b")]


def shown(place, sql):
    return " ".join(str(value) for row in place.rows(sql) for value in row).split()
