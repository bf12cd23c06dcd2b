"""A table of the warehouse as a source: its current rows, whichever engine reads them."""

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from backstory.doors.native.sources import rows_of_table
from backstory.errors import Refused
from backstory.formats.memory import Memory
from backstory.model.table import TableName
from backstory.warehouse import Warehouse

NAMES = (f"t{number}" for number in itertools.count(1))


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


def rows(*arguments):
    return pa.table({"id": [each[0] for each in arguments], "Name": [each[1] for each in arguments]})


def test_a_history_source_has_only_its_open_versions(lake):
    name = f"table_sources.{next(NAMES)}"
    copy = {"into": name, "key": "id"}
    lake.snapshot(rows((1, "Ann"), (2, "Bob"), (3, "Cid")), at="2024-01-01", remember=True, **copy)
    lake.snapshot(rows((1, "Anna"), (2, "Bob")), at="2024-01-03", **copy)
    lake.snapshot(rows((1, "An"), (2, "Bo"), (4, "Dee")), at="2024-01-02", **copy)  # late
    source = rows_of_table(lake.store, TableName("table_sources", name.partition(".")[2]))
    here = pa.concat_tables(source.batches(["Name", "id"])).select(["id", "Name"]).to_pylist()
    by_spark = source.frame().toArrow().select(["id", "Name"]).to_pylist()
    assert (
        sorted(here, key=str)
        == sorted(by_spark, key=str)
        == [{"id": 1, "Name": "Anna"}, {"id": 2, "Name": "Bob"}]
    )
    into = f"table_sources.{next(NAMES)}"
    assert lake.snapshot(f"table:{name}", into=into, key="id").counts["new"] == 2


@pytest.mark.parametrize("way", ["here", "tasks"])
def test_a_value_of_another_writer_that_no_table_holds_is_refused(lake, way):
    """As in files and frames, years beyond 9999 and text that is not UTF-8 are refused, even within lists."""
    lake = Warehouse(lake.store if way == "here" else replace(lake.store, memory=Memory(0)), embedded=False)
    lake.store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {lake.store.catalog}.table_sources")
    for value in ("array(DATE'9999-12-31' + 1)", "CAST(X'ff' AS STRING)"):
        name = f"table_sources.{next(NAMES)}"
        lake.store.spark.sql(
            f"CREATE TABLE {lake.store.catalog}.{name} USING iceberg AS SELECT 1 id, {value} v"
        )
        with pytest.raises(Refused) as stop:
            lake.snapshot(f"table:{name}", into=f"{name}_copy", key="id")
        assert (stop.value.code, stop.value.keys) == ("unreadable-value", ["v"])
