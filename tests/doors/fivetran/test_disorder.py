"""A sender that breaks the order of versions gets what the rule says all the same."""

import pytest
from destination import Place
from tables_as_text import in_order, table

from backstory.model.schema import Column
from backstory.model.table import TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.tables import load
from backstory.strategies.versions import rule
from backstory.testing.sender.client import definition
from backstory.testing.sender.copies import Copy, Difference


@pytest.mark.tables_on("memory", "iceberg")
def test_versions_that_overlap_are_read_whole_from_then_on(sender, store, schema):
    """A delete finds the version with the greatest start, also when that ended long before (5.2, step 4)."""
    columns = (Column("id", ColumnType(Kind.LONG)), Column("a", ColumnType(Kind.STRING)))
    told = definition("t", Copy(("id",), columns), ["id"], history=True)
    sender.create(schema, told)
    overlapping = table("""id a start end  active synced
                           1  p T1    TMAX true   T1
                           1  q T2    T3   false  T2""")
    late = [{"id": 1, "_fivetran_end": table("t\nT5")[0]["t"]}]

    sender.write(schema, told, Difference(replace=overlapping))
    sender.write(schema, told, Difference(delete=late))

    expected = rule.apply(overlapping, ["id"], ["id", "a"], delete=late).rows
    assert in_order(expected) == Place(sender, store, schema, told).rows()
    assert load(store, TableName(schema, "t")).disorderly


def test_versions_in_order_leave_no_mark(sender, store, schema):
    """A table whose senders keep the order is read by its slices."""
    columns = (Column("id", ColumnType(Kind.LONG)),)
    told = definition("t", Copy(("id",), columns), ["id"], history=True)
    sender.create(schema, told)
    sender.write(
        schema,
        told,
        Difference(
            replace=table("""id start end  active synced
                             1  T1    T2-1 false  T1
                             1  T2    TMAX true   T2""")
        ),
    )

    assert not load(store, TableName(schema, "t")).disorderly
