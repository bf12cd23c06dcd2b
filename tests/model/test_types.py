"""One lattice of types, including nested ones."""

import pyarrow as pa
import pytest

from backstory.formats.rows import arrow_type, type_of_arrow
from backstory.model.types import (
    MAX_PRECISION,
    NESTED_KINDS,
    ColumnType,
    Kind,
    are_related,
    fits,
    type_named,
    widens,
)

LIST_OF_LONGS = ColumnType(Kind.LIST, parts=(("element", ColumnType(Kind.LONG)),))
MAP_OF_DAYS = ColumnType(
    Kind.MAP, parts=(("key", ColumnType(Kind.STRING)), ("value", ColumnType(Kind.NAIVE_DATE)))
)
STRUCT = ColumnType(Kind.STRUCT, parts=(("a", ColumnType(Kind.INT)), ("b", LIST_OF_LONGS)))


@pytest.mark.parametrize(
    ("type_", "spelling", "stored"),
    [
        (ColumnType(Kind.LONG), "BIGINT", "LONG"),
        (ColumnType(Kind.NAIVE_DATE), "DATE", "NAIVE_DATE"),
        (ColumnType(Kind.NAIVE_DATETIME), "TIMESTAMP_NTZ", "NAIVE_DATETIME"),
        (ColumnType(Kind.UTC_DATETIME), "TIMESTAMP", "UTC_DATETIME"),
        (ColumnType(Kind.SHORT), "SMALLINT", "SHORT"),
        (ColumnType(Kind.NAIVE_TIME), "TIME", "NAIVE_TIME"),
        (ColumnType.decimal(12, 2), "DECIMAL(12,2)", "DECIMAL(12,2)"),
        (LIST_OF_LONGS, "ARRAY<BIGINT>", "LIST(LONG)"),
        (MAP_OF_DAYS, "MAP<STRING, DATE>", "MAP(STRING, NAIVE_DATE)"),
        (STRUCT, "STRUCT<a: INT, b: ARRAY<BIGINT>>", "STRUCT(a INT, b LIST(LONG))"),
        (ColumnType(Kind.STRING, foreign="uuid"), "uuid", "uuid"),
    ],
)
def test_types_are_shown_with_sql_names_and_stored_with_kind_names(type_, spelling, stored):
    assert (str(type_), type_.stored_name) == (spelling, stored)


FLAT = [ColumnType(kind) for kind in Kind if kind not in {*NESTED_KINDS, Kind.DECIMAL}]
DECIMALS = [ColumnType(Kind.DECIMAL, p, s) for p in range(1, MAX_PRECISION + 1) for s in range(p + 1)]
# Columns of new tables never have these types.
WITHOUT_COLUMNS = {Kind.SHORT, Kind.XML, Kind.JSON, Kind.NAIVE_TIME}


def test_every_displayed_type_name_can_be_parsed():
    for type_ in (*FLAT, *DECIMALS):
        if type_.kind in WITHOUT_COLUMNS:
            with pytest.raises(ValueError, match=str(type_)):
                type_named(str(type_))
        else:
            assert {type_} == {
                type_named(word) for word in (str(type_), str(type_).lower(), type_.stored_name)
            }


def test_every_stored_type_is_read_back():
    assert all(type_ == ColumnType.parse(type_.stored_name) for type_ in (*FLAT, *DECIMALS))


def test_every_arrow_type_maps_to_its_column_type():
    for type_ in (*FLAT, *DECIMALS, LIST_OF_LONGS, MAP_OF_DAYS, STRUCT):
        arrow = arrow_type(type_)
        assert arrow == arrow_type(type_of_arrow(arrow))
        if type_.kind not in WITHOUT_COLUMNS:
            assert type_ == type_of_arrow(arrow)
    assert str(type_of_arrow(pa.duration("us"))) == "duration[us]"


def test_nested_and_foreign_types_are_not_flat():
    assert ColumnType(Kind.JSON).flat
    assert not STRUCT.flat
    assert not ColumnType(Kind.STRING, foreign="uuid").flat


WIDER = """
    SHORT INT LONG
    DECIMAL(5,2) DECIMAL(9,2)
    NAIVE_TIME JSON
"""


def test_values_of_a_narrower_type_fit_a_wider_column():
    for line in WIDER.split("\n"):
        types = [ColumnType.parse(word) for word in line.split()]
        for place, old in enumerate(types):
            assert all(widens(old, new) for new in types[place:])
            assert not any(widens(old, new) for new in types[:place])


def test_a_float_column_cannot_be_widened_to_double_in_place():
    """A FLOAT displays other digits than its 64 bits, so a DOUBLE must be written again."""
    assert not widens(ColumnType(Kind.FLOAT), ColumnType(Kind.DOUBLE))


def test_text_is_related_to_any_type_and_numbers_only_to_numbers():
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
def test_a_type_fits_if_it_keeps_all_whole_and_decimal_digits(old, new, answer):
    assert fits(ColumnType.parse(old), ColumnType.parse(new)) is answer
