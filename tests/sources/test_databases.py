"""Remedies for databases: each can be followed when its message appears."""

import pytest

from backstory.errors import UsageError
from backstory.sources.databases.address import parse_address
from backstory.sources.databases.copies import refuse_column

QUERY = "SELECT v::text FROM t"


@pytest.mark.parametrize(("table", "bare"), [("?table=t", True), ("", False)])
def test_a_column_that_has_no_type_is_cast_by_a_query_beside_an_address_without_a_table(table, bare):
    """The file that `init` writes has the table in its address, which excludes a query."""
    database = parse_address(f"sqlite:///a.db{table}", None if table else QUERY)
    remedy = refuse_column(database, "v", "has no exact type").remedy
    assert ("a `source` without `?table=`" in remedy) is bare


def test_an_address_with_a_table_and_a_query_says_which_to_omit():
    with pytest.raises(UsageError) as told:
        parse_address("sqlite:///a.db?table=t", QUERY)
    assert told.value.remedy == "Omit `?table=` in the address, or omit `query=`."
