"""The errors for missing tables."""

import pytest

from backstory.model.table import TableName
from backstory.stores.port import no_table

KNOWN = [TableName("crm", "customer"), TableName("crm", "order"), TableName("erp", "Customer")]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("costumer", "Did you mean crm.customer?"),
        ("orders", "Did you mean crm.order?"),
        ("weather_station", "Create it first, or check its name."),
    ],
)
def test_the_remedy_for_a_misspelt_table_has_the_right_name(name, remedy):
    assert no_table(TableName("crm", name), KNOWN).remedy == remedy
