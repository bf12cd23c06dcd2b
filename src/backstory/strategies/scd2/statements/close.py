"""The statements that close versions (section 3.3, steps 1 and 2)."""

from collections.abc import Iterator

from backstory.stores.sql.statement import Statement
from backstory.strategies.scd2.pair import Pair
from backstory.strategies.scd2.statements.cases import closing
from backstory.strategies.scd2.transitions import TRANSITIONS, Past


def closes(pair: Pair) -> Iterator[Statement]:
    """A statement for each case of the table that closes the open version."""
    for now, condition in closing(pair).items():
        step = TRANSITIONS[Past.OPEN, now]
        if step.closes and step.closing:
            where = f"{pair.is_open('h')}\n  AND {condition}"
            values = pair.ending(pair.word(step.closes))
            update = pair.dialect.render_update_exists(pair.table, "h", values, where)
            yield Statement(step.closing, update)
