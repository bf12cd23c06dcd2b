"""With any settings of the caller's session, names are exact, instants are UTC, and settings are kept."""

import pytest

from backstory.errors import Refused
from backstory.warehouse import Warehouse

THEIRS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.inMemoryColumnarStorage.batchSize": "777",
}


def test_columns_that_differ_only_by_case_are_refused_despite_session_settings(store):
    """Engines that ignore case could not read the table. The session's settings do not change."""
    spark = store.spark
    before = {name: spark.conf.get(name) for name in THEIRS}
    for name, value in THEIRS.items():
        spark.conf.set(name, value)
    try:
        copy = spark.createDataFrame([(1, "a", "b")], "id int, x string, y string").toDF("id", "Name", "name")
        with pytest.raises(Refused) as caught:
            Warehouse(store, embedded=False).snapshot(copy, into="settled.case", key="id")
        assert caught.value.code == "repeated-column"
        assert {name: spark.conf.get(name) for name in THEIRS} == THEIRS
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
