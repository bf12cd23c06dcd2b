"""The plan of live rows gives the rule's table."""

from histories import KEY, LEFT_OVER, LIVE_COLUMNS, live_batches
from hypothesis import given
from plans_in_memory import applied, plan_live
from specification import live_rows as rule
from tables_as_text import in_order

from backstory.strategies.part_plan import ADDED, REMOVED

NAMES = (*LIVE_COLUMNS, LEFT_OVER)


def whole(rows):
    return [{name: row.get(name) for name in NAMES} for row in rows]


@given(live_batches())
def test_planned_batches_give_the_rules_table(history):
    """Each planned batch gives the rule's table and the rule's count of ignored rows."""
    table = whole(history.stored)
    for batch in history.batches:
        expected = rule.apply(table, KEY, LIVE_COLUMNS, **batch)
        plan = plan_live(table, NAMES, KEY, LIVE_COLUMNS, **batch)
        assert in_order(applied(table, NAMES, plan)) == in_order(whole(expected.rows))
        assert plan.counts["ignored"] == expected.ignored
        table = whole(expected.rows)


@given(live_batches())
def test_unchanged_rows_are_not_removed(history):
    """An unchanged row is neither removed nor written again."""
    table = whole(history.stored)
    for batch in history.batches:
        plan = plan_live(table, NAMES, KEY, LIVE_COLUMNS, **batch)
        after = whole(rule.apply(table, KEY, LIVE_COLUMNS, **batch).rows)
        stay = [row for row in table if row in after]
        assert plan.rows[REMOVED].num_rows == len(table) - len(stay)
        assert plan.rows[ADDED].num_rows == len(after) - len(stay)
        table = after
