"""The names that a table has for a source's columns, where the source's own may not stand (F21, E4)."""

import pytest

from backstory.model.schema import Column
from backstory.model.types import ColumnType, Kind
from backstory.stores.names import stored_names

CASES = [
    ("Name NAME name", "Name NAME_ name__"),
    ("_FIVETRAN_START _fivetran_start", "_FIVETRAN_START_ _fivetran_start"),
    ("_FILE _file_ _file", "_FILE__ _file_ _file___"),
    ("a B c", "a B c"),
]


@pytest.mark.parametrize(("sources", "stored"), CASES)
def test_no_two_stored_names_differ_by_case_alone(sources, stored):
    """Whatever a source calls its columns, engines that ignore case read the table."""
    names = stored_names(lambda name: name == "_file", sources.split())
    assert [names[each] for each in sources.split()] == stored.split()
    assert len({each.lower() for each in names.values()}) == len(names)


def test_a_column_that_comes_later_leaves_the_stored_ones_their_names():
    known = [Column("Name", ColumnType(Kind.STRING))]
    assert stored_names(lambda _: False, ["NAME", "Name"], known) == {"Name": "Name", "NAME": "NAME_"}
