"""The plan of intervals gives the rule's table."""

from histories import COLUMNS, KEY, LEFT_OVER, History, batches, wild_batches
from hypothesis import given
from plans_in_memory import applied, plan_history
from specification import versions as rule
from tables_as_text import in_order

NAMES = (*COLUMNS, LEFT_OVER)


def whole(rows):
    return [{name: row.get(name) for name in NAMES} for row in rows]


def check(history: History):
    """Each planned batch gives the rule's table and the rule's count of ignored rows."""
    table = whole(history.stored)
    for batch in history.batches:
        expected = rule.apply(table, KEY, COLUMNS, **batch)
        plan = plan_history(table, NAMES, KEY, **batch)
        result = applied(table, NAMES, plan)
        assert in_order(result) == in_order(whole(expected.rows))
        assert plan.counts["ignored"] == expected.ignored
        table = whole(expected.rows)


@given(batches())
def test_plans_of_valid_batches_give_the_rules_table(history):
    """For well-formed batches, the plan gives the rule's table."""
    check(history)


@given(wild_batches())
def test_plans_of_ill_formed_batches_give_the_rules_table(history):
    """For ill-formed batches with valid types, the plan also gives the rule's table."""
    check(history)


@given(batches())
def test_the_same_batch_again_changes_nothing(history):
    """A batch planned on its own result has no plan."""
    table = whole(history.stored)
    for batch in history.batches:
        table = whole(rule.apply(table, KEY, COLUMNS, **batch).rows)
        assert not any(map(len, plan_history(table, NAMES, KEY, **batch).rows.values()))


@given(batches())
def test_counts_are_the_difference_of_the_tables(history):
    """The counts of inserted and removed rows add up to the change in the number of rows."""
    table = whole(history.stored)
    for batch in history.batches:
        counts = plan_history(table, NAMES, KEY, **batch).counts
        after = whole(rule.apply(table, KEY, COLUMNS, **batch).rows)
        assert len(after) - len(table) == counts["inserted"] - counts["removed"]
        table = after
