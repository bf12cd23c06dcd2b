"""L8: The rows of every door keep every law of their layout, because a false alarm would be believed."""

import pytest
from datasets import Dataset
from destination import Place, serving
from historizing_on_spark import SparkPlace
from rows_read import rows_read
from spoilt_histories import of_files

from backstory.stores.iceberg.store import IcebergStore, tables
from backstory.testing.sender import Sender
from backstory.upkeep.checking import check, check_tables
from backstory.warehouse import Warehouse

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def records(spark, tmp_path_factory):
    """The records of all tables that the doors wrote, and the numbers of read and stored rows.

    Records were added, changed, removed and returned.
    """
    store, folder = IcebergStore(spark), tmp_path_factory.mktemp("checked")
    model = SparkPlace(store, folder)
    for number, rows in enumerate(("a:1 b:2", "a:9", "a:9 b:3"), 1):
        model.base(rows).load(f"r{number}", number)
    merges = ("kind: snapshot", "kind: ledger", "kind: ledger, encoding: op, onConflict: correct")
    for number, kind in enumerate(merges):
        name, merge = f"checked-{number}", f"{{{kind}, primaryKey: [city]}}"
        cities = Dataset(store, folder / name, merge, "city STRING, n INT", name=name)
        cities.add()
        for rows in ("A,1 B,2", "A,3", "A,3 B,4"):
            cities.push(rows)
    Dataset(store, folder / "never", merge, "city STRING, n INT", name="checked-never").add()
    with serving({"backstory": store}) as address:
        sender = Sender.to(address, folder)
        Place.made(sender, store, "checked", "id:LONG* v synced", "id v\n1 a\n2 b")
    warehouse = Warehouse(store, embedded=False)
    for number, rows in enumerate(([("a", 1), ("b", 2)], [("a", 9)], [("a", 9), ("b", 2)]), 1):
        frame = spark.createDataFrame(rows, "k string, v int")
        warehouse.snapshot(frame, into="checked.native", key="k", at=f"2026-01-0{number}T00:00:00Z")
    written = [table for schema in ("rawcore", "meta", "checked") for table in tables(store, schema)]
    written += [table for table in tables(store, "datasets") if table.name.startswith("checked-")]
    keeping = [each for each in written if each.schema in {"rawcore", "checked"}]
    logs = [each for each in written if each.schema == "datasets" and not each.name.endswith("__log")]
    rest = [each for each in [*written, *tables(store, "odf")] if each not in {*keeping, *logs}]
    results, read = check_tables(store, rest), {}
    for what, named in (("lives", keeping), ("logs", logs)):
        with rows_read(spark) as rows:
            results += [each for name in named for each in check(store, name)]  # by Spark
        read[what] = rows[0], [spark.table(store.sql_name(each)).count() for each in named]
    model.close()
    assert [each for table in (*rest, *keeping, *logs) for each in of_files(store, table)] == results
    return results, read


def test_tables_written_by_doors_keep_every_law(records):
    assert [each for each in records[0] if each["violations"]] == []


def test_each_row_is_read_once_for_all_laws(records):
    """V115: For an event log, the expected offsets and its blocks are read too."""
    read, stored = records[1]["lives"]
    assert read == sum(stored) > 0
    read, stored = records[1]["logs"]
    blocks = 3 + 1 + 3
    assert read == 2 * sum(stored) + 2 * blocks


def test_tables_of_every_door_were_checked(records):
    names = {each["table"] for each in records[0]}

    assert {"rawcore.rc_c", "rawcore.rc_c_hist", "checked.native"} <= names
    assert len(names) >= 8
