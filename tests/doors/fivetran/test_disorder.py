"""If a sender breaks the order of versions, the result is still the rule's."""

import pytest
from committing import commit
from destination import Place
from specification import versions as rule
from tables_as_text import in_order, table

from backstory.errors import BackstoryError
from backstory.formats.delivered import rows_as
from backstory.model.change import Change
from backstory.model.table import Column, TableName
from backstory.model.types import ColumnType, Kind
from backstory.stores.tables import load
from backstory.testing.sender import CopyDifference, SourceCopy, definition


@pytest.mark.tables_on("memory", "iceberg")
def test_overlapping_versions_mark_the_table_for_full_reads(sender, store, schema):
    """A delete finds the version with the greatest start, even if that version ended long before (5.2, step
    4)."""
    columns = (Column("id", ColumnType(Kind.LONG)), Column("a", ColumnType(Kind.STRING)))
    target = definition("t", SourceCopy(("id",), columns), history=True)
    sender.create(schema, target)
    overlapping = table("""id a start end  active synced
                           1  p T1    TMAX true   T1
                           1  q T2    T3   false  T2""")
    late = [{"id": 1, "_fivetran_end": table("t\nT5")[0]["t"]}]

    sender.write(schema, target, CopyDifference(replace=overlapping))
    sender.write(schema, target, CopyDifference(delete=late))

    expected = rule.apply(overlapping, ["id"], ["id", "a"], delete=late).rows
    assert in_order(expected) == Place(sender, store, schema, target).rows()
    assert load(store, TableName(schema, "t")).disorderly


def test_versions_in_order_do_not_mark_the_table(sender, store, schema):
    """If all senders keep the order, only slices of the table are read."""
    columns = (Column("id", ColumnType(Kind.LONG)),)
    target = definition("t", SourceCopy(("id",), columns), history=True)
    sender.create(schema, target)
    sender.write(
        schema,
        target,
        CopyDifference(
            replace=table("""id start end  active synced
                             1  T1    T2-1 false  T1
                             1  T2    TMAX true   T2""")
        ),
    )

    assert not load(store, TableName(schema, "t")).disorderly


SYSTEM = " synced start* end active"
APART = """id part a start end  active synced
           1  -    p T1    TMAX true   T1
           1  -    q T2    TMAX true   T2"""
REKEYED = {"fewer": "id:LONG* part a", "retyped": "id:LONG* part:LONG* a", "swapped": "id:LONG* part a b*"}


@pytest.mark.tables_on("memory", "iceberg")
@pytest.mark.parametrize("columns", REKEYED.values(), ids=REKEYED)
def test_a_key_change_that_merges_records_marks_the_table(sender, store, schema, columns):
    """33: A key that makes two records one leaves the mark, and the next batch of that key loads."""
    rows = [row | {"part": part} for row, part in zip(table(APART), ("1", "01"), strict=True)]
    place = Place.made(sender, store, schema, f"id:LONG* part* a{SYSTEM}", rows)
    assert not load(store, place.name).disorderly
    place = place.alter(columns + SYSTEM)
    assert load(store, place.name).disorderly
    new_rows = table("id part b a start end active synced \n 1 1 - u T5 TMAX true T5")
    named = [{name: row[name] for name in place.described() if name in row} for row in new_rows]
    key = [name.rstrip("*").partition(":")[0] for name in columns.split() if name.endswith("*")]
    place.write(earliest=[{n: row[n] for n in (*key, "_fivetran_start")} for row in new_rows], replace=named)
    lives = [(row["a"], row["_fivetran_active"]) for row in place.rows()]
    assert sorted(lives) == [("p", False), ("q", False), ("u", True)]


@pytest.mark.tables_on("memory", "iceberg")
def test_a_key_change_that_merges_no_records_does_not_mark_the_table(sender, store, schema):
    """33: If an unnecessary key column is removed, the table is still read by slices."""
    rows = "id part a start end active synced \n 1 x p T1 T2-1 false T1 \n 1 y q T2 TMAX true T2"
    place = Place.made(sender, store, schema, f"id:LONG* part* a{SYSTEM}", rows)
    assert not load(store, place.alter(f"id:LONG* part a{SYSTEM}").name).disorderly


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
    """id start end  active synced
       7  -     TMAX true   T1""",
]


@pytest.mark.parametrize("spoilt", SPOILT, ids=["two open", "overlap", "one start", "no start"])
def test_a_slice_corrupted_by_another_program_is_refused(sender, store, schema, spoilt):
    """V119: If no door caused the overlap, the table has no mark. The remedy is `repair`, and nothing is
    written."""
    columns = (Column("id", ColumnType(Kind.LONG)),)
    name = f"t{SPOILT.index(spoilt)}"
    target = definition(name, SourceCopy(("id",), columns), history=True)
    sender.create(schema, target)
    stored = load(store, TableName(schema, name))
    commit(store, stored, Change(added=rows_as(stored.shape.columns, table(spoilt))))
    before = Place(sender, store, schema, target).rows()
    healthy = CopyDifference(replace=table("id start end active synced\n8 T5 TMAX true T1"))
    touching = CopyDifference(replace=table("id start end active synced\n7 T8 TMAX true T1"))

    sender.write(schema, target, healthy)
    with pytest.raises(BackstoryError, match="backstory repair") as stop:
        sender.write(schema, target, touching)

    assert "something other than backstory wrote" in str(stop.value)
    assert len(Place(sender, store, schema, target).rows()) == len(before) + 1
