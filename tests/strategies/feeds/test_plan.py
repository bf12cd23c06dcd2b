"""The plan of a feed gives the rule's rows, whole and in parts by key; Spark does not run here."""

import pytest
from every_fact import COLUMNS, Scoped, arrivals
from feed_plans import delivered, differences, planned, stored, terms_of
from hypothesis import given
from hypothesis import strategies as st

from backstory.strategies.copies.stored import StoredVersions
from backstory.strategies.feeds.copies import take_among
from backstory.strategies.feeds.rule import Feed, apply

WHOLE = 1
SETTINGS = st.sampled_from(
    [
        {},
        {},
        {"ignored": frozenset("i")},
        {"overwritten": frozenset("o")},
        {"ignored": frozenset("i"), "overwritten": frozenset("o")},
    ]
)


@pytest.mark.parametrize("parts", [WHOLE, 3])
@given(arrivals())
def test_L15_a_feed_among_copies_gives_the_rules_rows(parts, two):
    """On the slice from the delivery's first instant on, whatever is stored before it."""
    table = StoredVersions(COLUMNS, settled=())
    for number, delivery in enumerate(two[0]):
        if isinstance(delivery, Scoped):
            table = take_among(table, delivery.copy, number, delivery.scope).table
            continue
        applied = apply(table, Feed(tuple(delivery)), number)
        since = min(each.at for each in delivery)
        plan, rows = planned(terms_of(table, number), delivered(delivery), stored(table.rows), parts, since)
        table = applied.table
        assert differences(rows, stored(table.rows)) == ([], [])
        assert _outcomes(plan) == {name: count for name, count in applied.counts.items() if count}


def _outcomes(plan):
    return {name: count for name, count in plan.counts.items() if name != "taken back"}
