"""A table of the warehouse as a source: its current rows, whichever engine reads them."""

import itertools

import pyarrow as pa
import pytest

from backstory.doors.native.sources import rows_of_table
from backstory.model.table import TableName
from backstory.warehouse import Warehouse

NAMES = (f"t{number}" for number in itertools.count(1))


@pytest.fixture
def lake(store):
    return Warehouse(store, embedded=False)


def rows(*given):
    return pa.table({"id": [each[0] for each in given], "Name": [each[1] for each in given]})


def test_a_history_gives_its_open_versions_without_what_it_remembers(lake):
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
