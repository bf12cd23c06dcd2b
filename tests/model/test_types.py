"""One lattice of types, nested ones too."""

import pytest

from backstory.model.types import ColumnType, Kind, are_related, fits, widens

LIST_OF_LONGS = ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.LONG)),))
STRUCT = ColumnType(Kind.STRUCT, parts=(("a", ColumnType(Kind.INT)), ("b", LIST_OF_LONGS)))


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (ColumnType(Kind.LONG), "LONG"),
        (ColumnType.decimal(12, 2), "DECIMAL(12,2)"),
        (LIST_OF_LONGS, "LIST(LONG)"),
        (STRUCT, "STRUCT(a INT, b LIST(LONG))"),
        (ColumnType(Kind.STRING, foreign="uuid"), "uuid"),
    ],
)
def test_a_type_has_a_name(type_, text):
    assert text == str(type_)


def test_flat_types_are_read_from_their_names():
    for kind in (Kind.LONG, Kind.JSON, Kind.NAIVE_TIME):
        assert ColumnType(kind) == ColumnType.parse(str(kind))
    assert ColumnType.decimal(12, 2) == ColumnType.parse("DECIMAL(12,2)")


def test_no_row_of_a_source_carries_what_is_nested_or_foreign():
    assert ColumnType(Kind.JSON).flat
    assert not STRUCT.flat
    assert not ColumnType(Kind.STRING, foreign="uuid").flat


WIDER = """
    SHORT INT LONG
    DECIMAL(5,2) DECIMAL(9,2)
    NAIVE_TIME JSON
"""


def test_values_of_a_narrower_type_stand_in_a_wider_one():
    for line in WIDER.split("\n"):
        types = [ColumnType.parse(word) for word in line.split()]
        for place, old in enumerate(types):
            assert all(widens(old, new) for new in types[place:])
            assert not any(widens(old, new) for new in types[:place])


def test_a_float_is_no_double_as_it_is_stored():
    """64 bits of a FLOAT show other digits than its 32: in a DOUBLE it is stored anew."""
    assert not widens(ColumnType(Kind.FLOAT), ColumnType(Kind.DOUBLE))


def test_text_stands_for_anything_and_numbers_for_numbers():
    assert are_related(ColumnType(Kind.LONG), ColumnType(Kind.XML))
    assert are_related(ColumnType(Kind.LONG), ColumnType.decimal(3, 1))
    assert not are_related(ColumnType(Kind.LONG), ColumnType(Kind.NAIVE_DATE))


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("DECIMAL(5,2)", "DECIMAL(7,4)", True),
        ("DECIMAL(5,2)", "DECIMAL(6,4)", False),
        ("DECIMAL(5,2)", "DECIMAL(9,1)", False),
        ("INT", "LONG", True),
        ("FLOAT", "DOUBLE", True),
        ("DOUBLE", "FLOAT", False),
        ("LONG", "INT", False),
    ],
)
def test_a_value_fits_where_neither_whole_digits_nor_fraction_get_fewer(old, new, answer):
    assert fits(ColumnType.parse(old), ColumnType.parse(new)) is answer
