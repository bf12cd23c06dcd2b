"""The definition of row hashes in a table."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from backstory.stores.sql.columns import Datatype
from backstory.stores.sql.row_hashes import HashedColumn, RowHash, hashes_of_property, hashes_to_keep

NAMES = ("a", "b c", "é`")
IDS = {name: number for number, name in enumerate(NAMES, 3)}
COLUMN = st.builds(
    HashedColumn,
    st.sampled_from(NAMES),
    st.sampled_from(Datatype),
    st.none() | st.integers(1, 38),
    st.none() | st.integers(0, 38),
    st.text(max_size=3),
)
HASH = st.builds(RowHash, st.lists(COLUMN, max_size=3).map(tuple), st.text(), st.text(), st.booleans())


@given(st.lists(HASH, max_size=3))
def test_stored_row_hashes_are_read_back(hashes):
    """Each definition is stored once. A renamed column is identified by its id."""
    names = {number: name for name, number in IDS.items()}
    text = hashes_to_keep(hashes, IDS)
    assert hashes_of_property(text, names) == list(dict.fromkeys(hashes))
    called = {number: f"new {name}" for number, name in names.items()}
    anew = [
        replace(each, columns=tuple(replace(one, name=f"new {one.name}") for one in each.columns))
        for each in dict.fromkeys(hashes)
    ]
    assert hashes_of_property(text, called) == anew


def test_unreadable_row_hashes_are_ignored():
    gone = hashes_to_keep([RowHash((HashedColumn("a", Datatype.STRING),), "|", "-")], IDS)
    for text in (None, "", "{", "{}x", "[1]", '[{"columns": []}]', gone):
        assert hashes_of_property(text, {}) is None
