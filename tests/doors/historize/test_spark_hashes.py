"""A model's tables record how their rows are hashed, so that `check` finds a wrong hash."""

import json

import pytest
from historizing import dataset, document
from historizing_on_spark import SparkPlace
from spoilt_histories import checked_twice

from backstory.model.table import TableName
from backstory.stores.iceberg.store import existing
from backstory.stores.sql.row_hashes import ROW_HASHES
from backstory.upkeep.checking import check

BASE, HISTORY = TableName("rawcore", "rc_c"), TableName("rawcore", "rc_c_hist")
COLUMNS = "k* a n:DECIMAL(10,2) t:TIMESTAMP d:DATE b:BOOLEAN c:TIME i:INTEGER"
ROWS = {
    "x": "one|two^,1.50,2024-03-31T01:30:00.000001Z,1999-12-31,true,01:02:03.4,7",
    "y": ",,,,,,",
    "z": "w,-0.00,1960-01-01T00:00:00Z,0001-01-01,false,23:59:59,-1",
}


@pytest.fixture
def place(store, tmp_path):
    place = SparkPlace(store, tmp_path)
    yield place
    place.close()


def load(place, run, header, rows, **options):
    text = "\n".join([header, *(f"{key},{values}" for key, values in rows.items())])
    (place.folder / "stage.csv").write_text(text + "\n")
    (receipt,) = place.loads(f"r{run}", run, **options)
    assert receipt.error is None
    return receipt


def row_hashes(store, table):
    return json.loads(existing(store, table).properties.get(ROW_HASHES, "null"))


def wrong(store, checker=check):
    """The keys whose hash does not match their values, by table."""
    results = {str(table): checker(store, table) for table in (BASE, HISTORY)}
    return {
        name: each["keys"] for name, laws in results.items() for each in laws if each["law"] == "row-hash"
    }


@pytest.mark.parametrize(
    ("columns", "checker"), [(COLUMNS, check), (COLUMNS.replace(":TIME ", " "), checked_twice)]
)
def test_a_wrong_hash_is_found_under_every_hash_definition(store, place, columns, checker):
    """A wrong hash is found under every definition of the model: another profile, an added or a renamed
    column."""
    place.use(document(dataset(columns, input="stage.csv")))
    load(place, 1, "k,a,n,t,d,b,c,i", ROWS)
    written = dataset(columns.replace(" a ", " first ") + " more:BIGINT", input="stage.csv")
    written["target_columns"][1]["former_names"] = ["a"]
    place.use(document(written, hash_profile="strict_v2"))
    rows = {key: f"{values},{number}" for number, (key, values) in enumerate(ROWS.items())}
    load(place, 2, "k,first,n,t,d,b,c,i,more", {"x": rows["x"], "z": rows["z"]}, hash_change="version")
    assert wrong(store, checker) == {str(BASE): [], str(HISTORY): []}
    assert [len(row_hashes(store, table)) for table in (BASE, HISTORY)] == [2, 2]
    later = "k = 'x' AND version_ended_at IS NULL"
    place.sql(f"UPDATE {HISTORY} SET i = coalesce(i, 0) + 1 WHERE k = 'y' OR ({later})")
    place.sql(f"UPDATE {BASE} SET more = more + 1 WHERE k = 'z'")
    assert wrong(store, checker) == {str(BASE): ["z"], str(HISTORY): ["x", "y"]}


def test_a_missing_hash_definition_is_not_recorded_later(store, place):
    """Without a record of the hash definition, rows are never checked later."""
    place.use(document(dataset(input="stage.csv")))
    load(place, 1, "k,a", {"a": "1"})
    assert [len(row_hashes(store, table)) for table in (BASE, HISTORY)] == [1, 1]
    for table in (BASE, HISTORY):
        place.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{ROW_HASHES}')")
    load(place, 2, "k,a", {"a": "2"})
    assert [row_hashes(store, table) for table in (BASE, HISTORY)] == [None, None]
    for table in (BASE, HISTORY):
        place.sql(f"UPDATE {table} SET a = 'x'")
    assert wrong(store) == {str(BASE): [], str(HISTORY): []}


def test_a_base_hashed_by_another_tool_clears_the_definition_of_its_history(store, place):
    """If another tool hashed the base, its history is not checked any more."""
    place.base("a:1")
    place.load("r1", 1)
    assert row_hashes(store, HISTORY) is None
    place.drop("rawcore.rc_c_hist")
    place.drop("rawcore.rc_c")
    place.use(document(dataset(input="stage.csv")))
    load(place, 2, "k,a", {"a": "1"})
    assert len(row_hashes(store, HISTORY)) == 1
    place.drop("rawcore.rc_c")
    place.base("a:2").load("r3", 3)
    assert row_hashes(store, HISTORY) is None
