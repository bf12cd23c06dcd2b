"""Errors for a key that identifies no record of the table."""

import pytest

from backstory.errors import UsageError
from backstory.model.layout import Layout
from backstory.model.table import Column, Shape, TableName
from backstory.model.types import ColumnType, Kind
from backstory.reading.options import key_of

LONG, TEXT = ColumnType(Kind.LONG), ColumnType(Kind.STRING)
TABLE = TableName("crm", "kunde")
NUMBERED = Shape(TABLE, (Column("kunde_id", LONG), Column("v", TEXT)), ("kunde_id",), Layout.VERSIONS)
NAMED = Shape(TABLE, (Column("kunde_id", TEXT), Column("v", TEXT)), ("kunde_id",), Layout.VERSIONS)
OF_TWO = Shape(TABLE, (Column("a", LONG), Column("b", TEXT)), ("a", "b"), Layout.VERSIONS)
KEYLESS = Shape(TABLE, (Column("a", LONG),), (), Layout.FOREIGN)


@pytest.mark.parametrize(
    ("shape", "key", "message", "remedy"),
    [
        (
            NUMBERED,
            "kunde=17",
            "crm.kunde has no key column kunde; the key is kunde_id.",
            "Write kunde_id=17, or only 17.",
        ),
        (
            NAMED,
            {"kunde": 17},
            "crm.kunde has no key column kunde; the key is kunde_id.",
            "Write kunde_id=17, or only 17.",
        ),
        (
            NUMBERED,
            "x",
            "'x' is not a BIGINT, the type of column kunde_id.",
            "Write a whole number in digits, such as 42.",
        ),
        (OF_TWO, "1", "The key of crm.kunde is a, b; b is not given.", "Write a=VALUE b=VALUE."),
        (
            OF_TWO,
            {"a": 1, "c": 2},
            "crm.kunde has no key column c; the key is a, b.",
            "Write a=VALUE b=VALUE.",
        ),
        (KEYLESS, "1", "crm.kunde has no key.", "Use `current` without a key."),
    ],
)
def test_a_key_with_wrong_columns_or_types_gets_the_right_remedy(shape, key, message, remedy):
    with pytest.raises(UsageError) as error:
        key_of(shape, key)
    assert (error.value.message, error.value.remedy) == (message, remedy)


def test_a_text_may_have_an_equals_sign():
    """If no key column has the name before the sign, it is a value."""
    assert key_of(NAMED, "kunde=17") == {"kunde_id": "kunde=17"}
