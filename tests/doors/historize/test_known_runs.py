"""A run is identified by place, schema, dataset and id, and counts only while its rows exist (H6)."""

import pytest
from historizing import Place, dataset, document, second
from historizing_on_spark import SparkPlace

EU, US = "rawcore", "rawcore_us"


@pytest.fixture(params=["duckdb", "postgres", "spark"])
def place(request, tmp_path):
    """An empty place of each kind."""
    if request.param == "spark":
        place = SparkPlace(request.getfixturevalue("store"), tmp_path)
    else:
        place = Place(request.param, request.getfixturevalue(f"{request.param}_url"), tmp_path)
    yield place
    place.close()


def load(place, schema, run, rows, at=None, columns="k* a"):
    """Load these rows, `a:1 b:2`, into the tables of a schema."""
    words = [word.split(":") for word in rows.split()]
    names = ",".join(word.split(":")[0].rstrip("*") for word in columns.split())
    (place.folder / "stage.csv").write_text("\n".join([names, *map(",".join, words), ""]))
    place.use(document(dataset(columns, input="stage.csv"), schema={"schema_name": schema}))
    (receipt,) = place.loads(run, at, max_delete_ratio=1.0)
    assert receipt.error is None, receipt.error
    return receipt


def test_a_run_id_belongs_to_its_schema(place):
    """Two datasets of one name in two schemas can share a run id. Each rerun has its own receipt."""
    first = load(place, EU, "2026-01-31", "a:1 b:1")
    other = load(place, US, "2026-01-31", "c:1")
    assert (first.counts["new"], other.counts["new"]) == (2, 1)
    assert place.rows("SELECT k FROM rawcore_us.rc_c_hist") == [("c",)]
    keys = "SELECT DISTINCT dataset_key FROM meta.hist_run ORDER BY 1"
    assert place.rows(keys) == [("rawcore.rawcore:rc_c",), ("rawcore_us.rawcore:rc_c",)]
    again = [load(place, schema, "2026-01-31", "z:9") for schema in (EU, US)]
    assert again == [first, other]


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
def test_a_lock_file_belongs_to_its_schema(place):
    """The lock file of one schema does not apply to another schema, whose first load is a first load."""
    load(place, EU, "r1", "a:1:2", 1, "k* a b:BIGINT")
    load(place, EU, "r2", "a:1", 2)
    load(place, US, "r1", "a:1:x", 1, "k* a b")
    assert len(list(place.folder.glob("*.hist.lock.yaml"))) == 2
    assert "retired_at: '2025" in place.lock().read_text()


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
def test_a_dataset_without_history_keeps_its_earlier_history(place):
    """4.2 rule 10, 3.1: `historize: false` gives no history. An existing one is kept, and can be used again."""
    load(place, EU, "r1", "a:1", 1)
    before = place.dump(), place.lock().read_text()
    model = {**dataset("k*", "rc_x_hist"), "incremental_strategy": "historize"}
    place.use(document(dataset(input="stage.csv", historize=False), model))
    assert place.loads("r2", 2) == []
    assert (place.dump(), place.lock().read_text()) == before
    assert load(place, EU, "r3", "a:1", 3).status == "unchanged"


def test_a_rerun_reloads_dropped_tables(place):
    """After its tables are dropped, a run does not count as loaded. Tables of a later run do not contain an
    earlier one. A run whose versions are in the archive counts as loaded."""

    def gone():
        for table in ("rc_c_hist", "rc_c"):
            place.sql(f"DROP TABLE rawcore.{table}")

    load(place, EU, "r1", "a:1", 1)
    load(place, EU, "r2", "a:1", 2)
    gone()
    again = load(place, EU, "r1", "a:1 b:1")
    assert again.counts["new"] == 2
    assert [line.split()[:2] for line in place.history()] == [["a", "1"], ["b", "1"]]
    assert load(place, EU, "r1", "z:9") == again
    gone()
    load(place, EU, "r3", "a:1", 3)
    assert load(place, EU, "r1", "a:2").counts["changed"] == 1
    again = load(place, EU, "r2", "a:3")
    assert again.counts["changed"] == 1
    place.sql("CREATE TABLE rawcore.rc_c_hist_archive AS SELECT * FROM rawcore.rc_c_hist")
    gone()
    load(place, EU, "r4", "b:1", 4)
    assert load(place, EU, "r2", "z:9").to_dict() == again.to_dict()


def test_a_renamed_dataset_uses_the_tables_of_its_latest_name(place):
    """R35: If several tables have former names of a dataset, the table with the latest name is renamed."""
    for name in ("rc_a", "rc_b"):
        place.use(document(dataset(name=name)))
        place.base("x:1").put("x 1 [1,-) new r1")
    place.use(document(dataset(name="rc_c", former_names=["rc_a", "rc_b"])))
    changes = place.load("r2", 2, dry_run=True).schema_changes
    assert [each for each in changes if "DATASET" in each] == [
        "RENAME_DATASET rc_b to rc_c",
        "RENAME_DATASET rc_b_hist to rc_c_hist",
    ]


def test_each_database_has_its_own_lock_file(tmp_path):
    """If one model is loaded into two databases of one name, the first load of each is a first load."""
    locks = []
    for number, columns in enumerate(("k* a b:BIGINT", "k* a", "k* a b")):
        folder = tmp_path / ("one" if number < 2 else "two")
        folder.mkdir(exist_ok=True)
        place = Place("duckdb", f"duckdb://{folder / 'lake.duckdb'}", tmp_path)
        load(place, EU, f"r{number}", "a:1:2" if "b" in columns else "a:1", number + 1, columns)
        locks.append(place.lock())
        place.close()
    assert locks[0] == locks[1] != locks[2]
    assert all(lock.exists() for lock in locks)


@pytest.mark.parametrize("place", ["duckdb", "postgres"], indirect=True)
def test_a_rerun_reloads_deleted_but_not_archived_versions(place):
    """A run without its versions in the history does not count as loaded. A run with pruned versions does."""
    first = load(place, EU, "r1", "a:1", 1)
    load(place, EU, "r2", "a:2", 2)
    place.sql("CREATE TABLE rawcore.rc_c_hist_archive AS SELECT * FROM rawcore.rc_c_hist WHERE k = 'a'")
    place.sql(f"DELETE FROM rawcore.rc_c_hist WHERE version_started_at = {place.literal(second(1))}")
    assert load(place, EU, "r1", "z:9") == first
    place.sql("DROP TABLE rawcore.rc_c_hist_archive")
    place.sql("DELETE FROM rawcore.rc_c_hist")
    assert load(place, EU, "r2", "a:2").counts["new"] == 1
