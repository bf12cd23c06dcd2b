"""Whatever a session of the caller's is set to: names are exact, instants are UTC, and its settings stay."""

import pytest

from backstory.errors import UsageError
from backstory.warehouse import Warehouse

THEIRS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.batchSize": "777",
}


def test_e4_columns_may_differ_by_case_alone_in_a_session_that_takes_them_for_one(store):
    """What is written and what is answered at once; a frame, which Spark could not read later, is refused."""
    spark = store.spark
    before = {name: spark.conf.get(name) for name in THEIRS}
    for name, value in THEIRS.items():
        spark.conf.set(name, value)
    try:
        warehouse = Warehouse(store, embedded=False)
        for at, cell in (("2026-07-01", "b"), ("2026-07-02", "c")):
            copy = spark.createDataFrame([(1, "a", cell)], "id int, x string, y string")
            warehouse.snapshot(copy.toDF("id", "Name", "name"), into="settled.case", key="id", at=at)
        table = warehouse.table("settled.case")
        assert [each["name"] for each in table.timeline(1).versions] == ["b", "c"]
        assert [row["Name"] for row in table.timeline(1, axis="both").versions] == ["a", "a", "a"]
        for asked in (table.current, lambda: table.diff("2026-07-01", "2026-07-02")):
            with pytest.raises(UsageError) as caught:
                asked()
            assert (caught.value.code, caught.value.keys) == ("names-differ-by-case", ["Name", "name"])
        assert not any(each["violations"] for each in table.check())
        assert {name: spark.conf.get(name) for name in THEIRS} == THEIRS
        spark.conf.set("spark.sql.caseSensitive", "true")
        assert table.current().select("id", "Name", "name").toArrow().to_pylist() == [
            {"id": 1, "Name": "a", "name": "c"}
        ]
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
