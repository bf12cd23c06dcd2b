"""A sender that breaks the order of versions gets what the rule says all the same."""

import pytest
from committing import commit
from destination import Place
from tables_as_text import in_order, table

from backstory.errors import BackstoryError
from backstory.formats.delivered import rows_as
from backstory.model.change import Change
from backstory.model.schema import Column
from backstory.model.table import TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.tables import load
from backstory.strategies.versions import rule
from backstory.testing.sender.client import definition
from backstory.testing.sender.copies import Difference, SourceCopy


@pytest.mark.tables_on("memory", "iceberg")
def test_versions_that_overlap_are_read_whole_from_then_on(sender, store, schema):
    """A delete finds the version with the greatest start, also when that ended long before (5.2, step 4)."""
    columns = (Column("id", ColumnType(Kind.LONG)), Column("a", ColumnType(Kind.STRING)))
    told = definition("t", SourceCopy(("id",), columns), ["id"], history=True)
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
    told = definition("t", SourceCopy(("id",), columns), ["id"], history=True)
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


SPOILT = [
    """id start end  active synced
       7  T1    TMAX true   T1
       7  T2    TMAX true   T1""",
    """id start end  active synced
       7  T1    T9   false  T1
       7  T2    TMAX true   T1""",
    """id start end  active synced
       7  T2    TMAX false  T1
       7  T2    TMAX true   T1""",
]


@pytest.mark.parametrize("spoilt", SPOILT, ids=["two open", "overlap", "one start"])
def test_a_slice_that_somebody_spoilt_is_refused(sender, store, schema, spoilt):
    """V119: no door brought it about, so the table bears no mark; the remedy is `repair`, nothing is written."""
    columns = (Column("id", ColumnType(Kind.LONG)),)
    name = f"t{SPOILT.index(spoilt)}"
    told = definition(name, SourceCopy(("id",), columns), ["id"], history=True)
    sender.create(schema, told)
    found = load(store, TableName(schema, name))
    commit(store, found, Change(come=rows_as(found.shape.columns, table(spoilt))))
    before = Place(sender, store, schema, told).rows()
    healthy = Difference(replace=table("id start end active synced\n8 T5 TMAX true T1"))
    touching = Difference(replace=table("id start end active synced\n7 T8 TMAX true T1"))

    sender.write(schema, told, healthy)
    with pytest.raises(BackstoryError, match="backstory repair") as stop:
        sender.write(schema, told, touching)

    assert "somebody wrote past" in str(stop.value)
    assert len(Place(sender, store, schema, told).rows()) == len(before) + 1
