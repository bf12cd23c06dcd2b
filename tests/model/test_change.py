"""A change can be printed before anything is written."""

from dataclasses import replace

from backstory.model.change import Change, Note, Tag
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind

LONG, TEXT = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
SHAPE = Shape(TableName("crm", "a"), (Column("id", LONG), Column("b", TEXT)), ("id",), Layout.FIVETRAN_LIVE)


def test_changed_rows_are_listed_by_outcome():
    assert ["2 rows inserted"] == Change({"inserted": 2, "deleted": 0}).lines(SHAPE)


def test_a_new_table_is_listed():
    assert ["table created"] == Change(into=SHAPE).lines(None)


def test_a_new_shape_is_listed_column_by_column():
    into = replace(
        SHAPE, columns=(Column("key", LONG), Column("b", ColumnType(Kind.JSON)), Column("c", LONG))
    )

    lines = Change(into=into, renamed={"id": "key"}).lines(SHAPE)

    assert ["new column c (BIGINT)", "column b: type is now JSON", "column id renamed to key"] == lines


def test_dropped_columns_and_new_layouts_are_listed():
    into = replace(SHAPE, columns=SHAPE.columns[:1], layout=Layout.FIVETRAN_HISTORY)

    assert ["column b dropped", "layout is now fivetran-history"] == Change(into=into).lines(SHAPE)


def test_changes_of_names_tags_and_rows_are_listed():
    """Each part of a change has its own line, in the words of a log."""
    into = replace(SHAPE, table=TableName("crm", "b"))
    tags = {"x": None, "y": Tag(1, 1)}

    assert ["table renamed to crm.b"] == Change(into=into).lines(SHAPE)
    assert ["all rows are rewritten"] == Change(whole=True).lines(SHAPE)
    assert ["table restored to snapshot 7"] == Change(back_to=7).lines(SHAPE)
    assert ["tag x removed", "tag y moved"] == Change(tags=tags).lines(SHAPE)


def test_a_note_has_door_token_counts_and_the_doors_properties():
    properties = Note("odf", "t", {"backstory.odf.block": "x"}).properties({"appended": 1})

    assert "odf" == properties["backstory.door"]
    assert "t" == properties["backstory.token"]
    assert '{"appended": 1}' == properties["backstory.counts"]
    assert "x" == properties["backstory.odf.block"]
