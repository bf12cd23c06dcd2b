"""The switch: on the driver if it can hold the rows, otherwise in Spark's tasks, with a logged reason."""

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from backstory.engine.runner import IN_TASKS, NO_MEMORY, NOT_HERE, TOO_LARGE, plan_here_or_in_tasks
from backstory.errors import Refused
from backstory.formats.memory import CLEAR_TEXT_SHARE, Memory, TooLarge
from backstory.model.table import TableName

TABLE = TableName("crm", "customer")


class Ways:
    """Both ways, and their leases until the end."""

    def __init__(self, most=100):
        self.store = SimpleNamespace(memory=Memory(CLEAR_TEXT_SHARE * most))
        self.ended = []

    def here(self, holds, answer="here"):
        def plan(stack):
            stack.callback(self.ended.append, "here")
            stack.enter_context(self.store.memory.lease()).hold("rows", holds)
            return answer

        return plan

    def tasks(self, stack):
        stack.callback(self.ended.append, "tasks")
        return "tasks"


def test_small_plans_are_made_on_the_driver():
    ways = Ways()
    with capture_logs() as logs, plan_here_or_in_tasks(ways.store, TABLE, ways.here(100), ways.tasks) as plan:
        assert plan == "here"
        assert ways.ended == []
    assert ways.ended == ["here"]
    assert logs == []


@pytest.mark.parametrize(
    ("most", "holds", "answer", "why"),
    [(100, 101, "here", TOO_LARGE), (100, 1, None, NOT_HERE), (0, 0, "here", NO_MEMORY)],
)
def test_other_plans_are_left_to_tasks_with_a_reason(most, holds, answer, why):
    """The driver's lease is released first."""
    ways = Ways(most)
    tried = ["here"] if most else []
    here = ways.here(holds, answer)
    with capture_logs() as logs, plan_here_or_in_tasks(ways.store, TABLE, here, ways.tasks) as plan:
        assert plan == "tasks"
        assert ways.ended == tried
        with ways.store.memory.lease() as lease:
            lease.hold("all of it", most)
    assert ways.ended == [*tried, "tasks"]
    assert [(each["event"], each["table"], each["reason"]) for each in logs] == [
        (IN_TASKS, "crm.customer", why)
    ]


def test_refusals_and_later_errors_are_not_planned_again():
    ways = Ways()

    def refuse(_kept):
        raise Refused("null-key", "A key is NULL.", "Nothing was written.")

    with pytest.raises(Refused), plan_here_or_in_tasks(ways.store, TABLE, refuse, ways.tasks):
        pass
    with pytest.raises(TooLarge), plan_here_or_in_tasks(ways.store, TABLE, ways.here(1), ways.tasks):
        raise TooLarge  # raised by the plan's caller, so nothing is planned again
    assert ways.ended == ["here"]
