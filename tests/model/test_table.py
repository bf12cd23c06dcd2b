"""A text is the name of the table in a list of tables, or of a dataset if there is no such table."""

import pytest

from backstory.errors import UsageError
from backstory.model.table import TableName, resolve_name

FIVETRAN, LOG, CITIES = (
    TableName("world", "lands"),
    TableName("odf", "world.lands"),
    TableName("odf", "cities"),
)


@pytest.mark.parametrize(
    ("text", "there", "meant"),
    [
        ("world.lands", {FIVETRAN, LOG}, FIVETRAN),
        ("world.lands", {LOG}, LOG),
        ("odf.world.lands", {FIVETRAN, LOG}, LOG),
        ("cities", {CITIES}, CITIES),
        ("odf.cities", {CITIES}, CITIES),
        ("world.seas", {FIVETRAN}, None),
    ],
)
def test_a_name_refers_to_a_table_before_a_dataset(text, there, meant):
    assert resolve_name(text, there.__contains__) == meant


@pytest.mark.parametrize("text", ["", "cities", ".cities", "world."])
def test_an_invalid_table_name_is_wrong_usage(text):
    with pytest.raises(UsageError, match="does not name a table"):
        resolve_name(text, set().__contains__)
