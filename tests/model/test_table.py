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
def test_a_name_means_the_table_of_that_name_before_a_dataset(text, there, meant):
    assert resolve_name(text, there.__contains__) == meant


@pytest.mark.parametrize("text", ["", "cities", ".cities", "world."])
def test_what_can_name_no_table_is_wrong_usage(text):
    with pytest.raises(UsageError, match="does not name a table"):
        resolve_name(text, set().__contains__)
