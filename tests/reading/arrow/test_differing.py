"""Pairs of places are what the rule says of the rows: every kind of value, any order, any part of them."""

import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from backstory.reading.arrow.differing import ListedDifferences, pair
from backstory.reading.rules.differences import Side, differences
from backstory.stores.metadata.values import rows_of

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("l", pa.string()),
        ("f", pa.float64()),
        ("t", pa.string()),
        ("n", pa.list_(pa.float64())),
    ]
)
VALUE = st.fixed_dictionaries(
    {
        "f": st.sampled_from([None, 0.0, -0.0, math.nan, 1.5]),
        "t": st.sampled_from([None, "", "a", "b"]),
        "n": st.sampled_from([None, [], [math.nan], [0.0], [-0.0, None]]),
    }
)
KEY = st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "é"]))
STATE = st.dictionaries(KEY, VALUE, max_size=8)


def sides(before, after):
    rows = [{"k": k, "l": m, **value} for state in (before, after) for (k, m), value in state.items()]
    users = pa.Table.from_pylist(rows, SCHEMA)
    return users, np.arange(len(before)), np.arange(len(before), len(rows))


def ruled(users, before, after, key):
    rows = rows_of(users)
    told = [Side(rows[place], place in set(after)) for place in (*before, *after)]
    return ListedDifferences(differences(told, key))


@given(STATE, STATE)
def test_pairs_are_what_the_rule_says(before, after):
    users, one, other = sides(before, after)
    for key in (["k", "l"], ["l", "k"]):
        paired, rule = pair(users, key, one, other), ruled(users, one, other, key)
        assert repr(paired.page()) == repr(rule.page())
        assert len(paired) == len(rule)
        assert paired.kinds() == rule.kinds()
        assert paired.columns() == rule.columns()
        assert repr(paired.page(1, 3)) == repr(rule.page(1, 3))
        for kind in ("added", "changed", "removed", "returned"):
            wanted = [each for each in rule.page() if each["change"] == kind]
            assert repr(paired.of_kind(kind).page()) == repr(wanted)


@given(STATE, STATE)
def test_alike_changes_are_counted_alike(before, after):
    users, one, other = sides(before, after)
    paired, rule = pair(users, ["k", "l"], one, other), ruled(users, one, other, ["k", "l"])

    def counted(found):
        return sorted(
            (each.count, each.column, each.before, each.after) for each in found if each.column != "f"
        )

    assert counted(paired.alike_changes(99)) == counted(rule.alike_changes(99))


def test_what_the_rule_must_pair_is_left_to_it():
    """A key with NULL, one that a side has twice, a floating one, and none."""
    users = pa.table({"k": [1, 1, None], "f": [1.0, 2.0, 3.0]})
    places = np.array([0]), np.array([1, 2])
    assert pair(users, ["k"], *places) is None
    assert pair(users, ["k"], np.array([0, 1]), np.array([], np.int64)) is None
    assert pair(users, ["f"], *places) is None
    assert pair(users, [], *places) is None
